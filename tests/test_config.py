from dataclasses import dataclass, field
from typing import Literal

import pytest
from pydantic import TypeAdapter

from generalizeformer import config
from generalizeformer.config import from_dict, to_dict
from generalizeformer.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError("the rate must be >= 0")


@dataclass(frozen=True, kw_only=True)
class Outer:
    kind: Literal["a", "b"] = "a"
    inner: Inner = field(default_factory=Inner)
    other: Inner | None = None
    several: tuple[Inner, ...] = ()


CONFIGS = [
    Outer(),
    Outer(several=(Inner(), Inner(rate=0.2))),
    Outer(kind="b", inner=Inner(names=("x", "y")), other=Inner(rate=0.0)),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_what_goes_out_comes_in_again(config: Outer) -> None:
    assert from_dict(Outer, to_dict(config)) == config


def test_absent_settings_are_the_defaults() -> None:
    assert from_dict(Outer, {}) == Outer()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"kinds": "a"}, "kinds"),
        ({"inner": {"rte": 1}}, "inner.rte"),
        ({"other": {"rte": 1}}, "other.rte"),
        ({"several": [{}, {"rte": 1}]}, "several.1.rte"),
        ({"several": ({"rate": 1, "rte": 1},)}, "several.0.rte"),
    ],
)
def test_unknown_settings_are_refused_at_any_depth(data: dict[str, object], name: str) -> None:
    with pytest.raises(UserError, match=f"there is no setting '{name}'"):
        from_dict(Outer, data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"kind": "c"}, "setting kind: .*'a' or 'b', got 'c'"),
        ({"inner": {"rate": "fast"}}, "setting inner.rate: .*got 'fast'"),
        ({"inner": {"rate": -1}}, "setting inner: .*rate must be >= 0"),
        ({"inner": 3}, "setting inner"),
        ([], "setting Outer"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(data: dict[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text) as error:
        from_dict(Outer, data)
    assert "\n" not in str(error.value)


def test_a_type_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config._validator.cache_clear()
    built: list[type] = []

    def build(kind: type) -> object:
        built.append(kind)
        return TypeAdapter(kind)

    monkeypatch.setattr(config, "TypeAdapter", build)
    for rate in (0.1, 0.2):
        assert from_dict(Inner, {"rate": rate}) == Inner(rate=rate)
        assert from_dict(Outer, {"inner": {"rate": rate}}).inner == Inner(rate=rate)
    assert built == [Inner, Outer]
