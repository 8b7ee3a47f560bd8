"""Frozen dataclasses ↔ plain data: validated on the way in, stable on the way out. Knows no concrete config."""

import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from generalizeformer.errors import UserError

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain, JSON-ready data."""
    return json.loads(json.dumps(dataclasses.asdict(config)))  # type: ignore[no-any-return]


def from_dict(kind: type[T], data: dict[str, Any]) -> T:
    """The config, or an error that names the first field that does not fit. Unknown fields are refused."""
    try:
        config: T = _validator(kind).validate_python(data)  # type: ignore[arg-type]
    except ValidationError as error:
        # In a union every member complains; the one whose tag fits complains of something else than the tag.
        first = sorted(error.errors(), key=lambda e: e["loc"][-1:] == ("kind",))[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "value_error":  # a config's own refusal, which says all there is to say
            prefix = f"setting {where}: " if where else ""
            raise UserError(f"{prefix}{first['ctx']['error']}") from None
        raise UserError(
            f"setting {where or kind.__name__}: {first['msg']}, got {first['input']!r}"
        ) from None
    if unknown := next(_unknown(data, to_dict(config)), None):
        known = ", ".join(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]
        raise UserError(f"there is no setting {unknown!r}; the settings are: {known}")
    return config


@functools.cache
def _validator(kind: type[T]) -> TypeAdapter[T]:
    """Built once for each type: that takes far longer than to use it."""
    return TypeAdapter(kind)


def _unknown(given: Any, known: Any) -> Iterator[str]:
    """The keys of `given`, at any depth, that validation dropped: a misspelt setting must not pass silently."""
    if isinstance(given, dict) and isinstance(known, dict):
        yield from (key for key in given if key not in known)
        inner = [(key, value, known[key]) for key, value in given.items() if key in known]
    elif isinstance(given, list | tuple) and isinstance(known, list):
        pairs = zip(given, known, strict=False)
        inner = [(str(place), *pair) for place, pair in enumerate(pairs)]
    else:
        return
    for key, value, there in inner:
        yield from (f"{key}.{deeper}" for deeper in _unknown(value, there))
