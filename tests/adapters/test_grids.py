"""What methods are searched over: plain data that every search can use."""

import json
from typing import Any

import pytest

from generalizeformer import catalog
from generalizeformer.config import from_dict

METHODS = "generalizeformer.adapters"
SEARCHED = [m for m in catalog.names(METHODS) if hasattr(catalog.load(METHODS, m), "GRID")]


def test_the_methods_with_published_grids_have_one() -> None:
    assert SEARCHED == ["alpha_bn", "t3a", "tent"]


@pytest.mark.parametrize("method", SEARCHED)
def test_every_entry_is_plain_data_that_the_method_takes(method: str) -> None:
    module = catalog.load(METHODS, method)
    for entry in module.GRID:
        assert json.loads(json.dumps(entry)) == entry
        config = from_dict(module.Config, entry)
        assert {name: getattr(config, name) for name in entry} == entry


@pytest.mark.parametrize("method", SEARCHED)
def test_the_default_comes_first_and_no_entry_twice(method: str) -> None:
    module = catalog.load(METHODS, method)
    configs = [from_dict(module.Config, entry) for entry in module.GRID]
    assert configs[0] == module.Config()
    assert all(one not in configs[:number] for number, one in enumerate(configs))


@pytest.mark.parametrize("method", SEARCHED)
def test_all_entries_set_the_same_names(method: str) -> None:
    first, *others = catalog.load(METHODS, method).GRID
    assert others
    assert all(entry.keys() == first.keys() for entry in others)


def values(method: str, name: str) -> set[Any]:
    return {entry[name] for entry in catalog.load(METHODS, method).GRID}


def test_the_grids_are_the_published_ones() -> None:
    assert values("t3a", "supports") == {1, 5, 20, 50, 100, None}
    assert values("alpha_bn", "batch_weight") == {0.0, 0.05, 0.1, 0.2, 0.3, 0.5}
    assert values("tent", "steps") == {1, 3}
    assert sorted(values("tent", "learning_rate")) == pytest.approx([1e-4, 1e-3, 1e-2])
    assert len(catalog.load(METHODS, "tent").GRID) == 6
