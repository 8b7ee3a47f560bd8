"""Settings from words, or from a JSON file: of a recipe, laid over those of the flags, and of methods."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generalizeformer.errors import UserError

if TYPE_CHECKING:
    from generalizeformer.training._recipe import Recipe


def overridden(recipe: "Recipe", path: Path) -> "Recipe":
    """The recipe with the settings of a JSON file laid over it."""
    from generalizeformer.config import from_dict, to_dict

    changes = read_json(path)
    try:
        return from_dict(type(recipe), _merged(to_dict(recipe), changes))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def method_settings(path: Path | None) -> dict[str, dict[str, Any]]:
    """Settings by method, as a JSON file has them. A misspelt one is told before anything runs."""
    settings = {} if path is None else read_json(path)
    for method, given in settings.items():
        try:
            _check(method, given)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    return settings


def settings_of_data(words: Sequence[str]) -> dict[str, Any]:
    """Settings of a dataset from words such as drop_error=true."""
    return _pairs("data settings", words, "drop_error=true")


def settings_of_order(words: Sequence[str]) -> dict[str, Any]:
    """Settings of an order of arrival from words such as beta=1.0."""
    return _pairs("order settings", words, "beta=1.0")


def _pairs(flag: str, words: Sequence[str], example: str) -> dict[str, Any]:
    """Names and values; what a value has to be is checked where it is used."""
    for word in words:
        if "=" not in word:
            raise UserError(f"{flag}: got {word!r}; give name=value, such as {example}")
    return {name: _value(flag, name, text) for name, text in (word.split("=", 1) for word in words)}


def _value(flag: str, name: str, text: str) -> Any:
    """The value as it was written, or the list that it is."""
    if not text.startswith("["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{flag}: {name} is {text!r}, no readable list ({error}); give one such as [15,75]"
        ) from None


def _check(method: str, given: Any) -> None:
    from generalizeformer import catalog
    from generalizeformer.benchmark.runner import ADAPTERS
    from generalizeformer.config import from_dict

    module = catalog.load(ADAPTERS, method)
    if not isinstance(given, dict):
        raise UserError(
            f"{method}: got {type(given).__name__}; the settings of a method are a JSON object"
        )
    try:
        from_dict(module.Config, given)
    except UserError as error:
        raise UserError(f"{method}: {str(error).removeprefix(f'{method}: ')}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give one with a JSON object")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: no readable JSON settings ({error}); give a JSON object"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: got {type(content).__name__}; settings are a JSON object")
    return content


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The changes laid over the base; of another kind, such as another φ, they have nothing in common."""
    if changes.get("kind", base.get("kind")) != base.get("kind"):
        return changes
    both = {
        key: _merged(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in changes.items()
    }
    return base | both
