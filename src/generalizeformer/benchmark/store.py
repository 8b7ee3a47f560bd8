"""Finished cells as files, one each, so that a benchmark can be stopped at any time and goes on where it was."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from generalizeformer import atomic
from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.records import Record
from generalizeformer.config import from_dict


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A cell, its records, and the circumstances they were made in."""

    cell: Cell
    records: tuple[Record, ...]
    seconds: float  # trained and evaluated, as far as this was not taken over from an earlier try
    device: str
    commit: str | None = None  # of the code, where it is known


def suite_folder(folder: Path, suite: str) -> Path:
    """Where a suite has its results, in the folder of the models and backbones that all suites share."""
    return folder if suite == "main" else folder / suite


def place(folder: Path, cell: Cell) -> Path:
    """The file of a cell."""
    return suite_folder(folder, cell.suite) / "cells" / f"{cell.name}.json"


def write(folder: Path, finished: Finished) -> None:
    """The cell's file, which appears whole or not at all."""
    text = json.dumps(asdict(finished), indent=1, ensure_ascii=False)
    atomic.write_text(place(folder, finished.cell), f"{text}\n")


def read(folder: Path, cell: Cell) -> Finished | None:
    """What is stored of this very cell; None where there is nothing readable, or where its settings were others."""
    try:
        content = json.loads(place(folder, cell).read_text("utf-8"))
        finished = from_dict(Finished, content)
    except (OSError, ValueError, TypeError):  # done again, as that is all there is to do
        return None
    return finished if finished.cell.key() == cell.key() else None
