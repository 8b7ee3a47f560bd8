"""What `results` tells is what its records say."""

import json
from pathlib import Path
from typing import Any

import pytest

from generalizeformer.benchmark.store import Stored, place
from generalizeformer.benchmark.suites import SUITES
from generalizeformer.config import from_dict

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("**/cells"))


def cells(folder: Path) -> list[tuple[Path, Stored]]:
    return [
        (path, from_dict(Stored, json.loads(path.read_text("utf-8"))))
        for path in sorted((folder / "cells").glob("*.json"))
    ]


def test_there_are_some() -> None:
    assert RESULTS / "pacs" in FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_the_summary_is_that_of_the_records(folder: Path) -> None:
    stored = [found for _, found in cells(folder)]
    (suite,) = {found.cell.suite for found in stored}
    told = SUITES[suite].summary([record for found in stored for record in found.records])
    assert_same(json.loads((folder / "summary.json").read_text("utf-8")), told)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_methods_were_compared_on_one_source_model_each_and_are_found_again(folder: Path) -> None:
    for path, found in cells(folder):
        assert len({record.source for record in found.records}) == 1
        assert all(record.commit for record in found.records)
        root = folder if found.cell.suite == "main" else folder.parent
        assert place(root, found.cell) == path


def assert_same(one: Any, other: Any) -> None:
    """Sums over records may be rounded in another order."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    else:
        assert one == pytest.approx(other)
