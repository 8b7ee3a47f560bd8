"""What methods are searched over: plain data that every search can use."""

import json
import math
from typing import Any

import pytest

from generalizeformer import catalog
from generalizeformer.config import from_dict

METHODS = "generalizeformer.adapters"
SEARCHED = [m for m in catalog.names(METHODS) if hasattr(catalog.load(METHODS, m), "GRID")]
# A new method has a GRID, or its name here.
NOT_SEARCHED = ("source", "mirror", "generalizeformer")  # two controls, and ours as it was trained
NOTHING_PUBLISHED = ("sar", "rotta", "da_erm", "metanorm", "single_sample")

HARNESS = ("pl", "pl_c", "shot", "shot_im", "tent_bn", "tent_c")  # all searched alike


def test_every_method_has_a_grid_or_is_named_here_as_one_without() -> None:
    without = {*NOT_SEARCHED, *NOTHING_PUBLISHED}
    assert {*SEARCHED} | without == {*catalog.names(METHODS)}
    assert not {*SEARCHED} & without


@pytest.mark.parametrize("method", NOTHING_PUBLISHED)
def test_a_method_without_published_values_says_so(method: str) -> None:
    told = " ".join((catalog.load(METHODS, method).__doc__ or "").split()).lower()
    assert "nothing to search" in told or "nothing published to search" in told


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


def grid(method: str) -> tuple[dict[str, Any], ...]:
    entries: tuple[dict[str, Any], ...] = catalog.load(METHODS, method).GRID
    return entries


def values(method: str, name: str) -> set[Any]:
    return {entry[name] for entry in grid(method)}


def test_the_grids_are_the_published_ones() -> None:
    assert values("t3a", "supports") == {1, 5, 20, 50, 100, None}
    assert values("alpha_bn", "batch_weight") == {0.05, *(tenths / 10 for tenths in range(11))}
    assert values("lame", "affinity") == {"rbf", "knn", "linear"}
    assert {e["neighbours"] for e in grid("lame") if e["affinity"] == "knn"} == {1, 3, 5}


def test_tent_is_searched_around_its_own_rate_and_around_the_harness_s() -> None:
    rates = [1e-3, 1e-4, 1e-2, 5e-5, 5e-6, 5e-4]
    assert [e["learning_rate"] for e in grid("tent")[::2]] == pytest.approx(rates)
    assert [e["steps"] for e in grid("tent")] == [1, 3] * 6


@pytest.mark.parametrize("method", HARNESS)
def test_what_learns_in_t3a_s_harness_is_searched_as_there(method: str) -> None:
    assert sorted(values(method, "learning_rate")) == pytest.approx([5e-6, 5e-5, 5e-4])
    assert values(method, "steps") == {1, 3}
    assert len(grid(method)) == 6


PRODUCTS: dict[str, dict[str, set[Any]]] = {
    "tast": {
        "heads": {1, 5, 10, 20},
        "supports": {1, 5, 20, 50, 100, None},
        "neighbours": {1, 2, 4, 8},
        "steps": {1, 3},
    },
    "tast_bn": {"supports": {1, 5, 20}, "neighbours": {1, 2, 4, 8}, "steps": {1, 3}},
    "adanpc": {
        "confidence": {0.0, 0.25, 0.75, 1.1},
        "neighbours": {1, 5, 10, 25, 50, 75, 100, 150, 200},
        "temperature": {0.01, 0.05, 0.1, 0.25, 0.5},
    },
}


@pytest.mark.parametrize("method", PRODUCTS)
def test_the_large_grids_are_whole(method: str) -> None:
    axes = PRODUCTS[method]
    assert {name: values(method, name) for name in grid(method)[0]} == axes
    assert len(grid(method)) == math.prod(len(axis) for axis in axes.values())


PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "eta": [
        {"learning_rate": 2.5e-4, "redundancy_margin": 0.05},
        {"learning_rate": 5e-3, "redundancy_margin": 0.4},
    ],
    "deyo": [{"threshold": 0.2}, {"threshold": 0.3}, {"threshold": 0.5}],
    "batchnorm": [{"prior": 0.0}, {"prior": 16.0}],
    "domainadaptor": [{"loss": "gem-t"}, {"loss": "gem-skd"}],
    "memo": [
        {"optimizer": "sgd", "learning_rate": 2.5e-4, "weight_decay": 0.0, "views": 64},
        {"optimizer": "adamw", "learning_rate": 1e-5, "weight_decay": 0.01, "views": 64},
        {"optimizer": "sgd", "learning_rate": 0.005, "weight_decay": 0.0, "views": 32},
    ],
}


@pytest.mark.parametrize("method", PUBLISHED)
def test_where_there_is_no_grid_the_settings_are_the_published_ones(method: str) -> None:
    assert list(grid(method)) == PUBLISHED[method]


def test_eata_is_searched_as_eta_with_the_published_anchors() -> None:
    anchors = [2000.0, 1.0]
    expected = [e | {"fisher_alpha": a} for e, a in zip(PUBLISHED["eta"], anchors, strict=True)]
    assert list(grid("eata")) == expected


def test_cotta_s_thresholds_are_those_of_its_three_datasets() -> None:
    assert [entry["confidence"] for entry in grid("cotta")] == [0.92, 0.72, 0.1]
