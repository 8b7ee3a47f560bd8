"""What is there of each cell as a file, so that a benchmark can be stopped at any time and goes on where it was."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from generalizeformer import atomic
from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.images import Shown, differences
from generalizeformer.benchmark.parts import shown
from generalizeformer.benchmark.records import Record, Refusal
from generalizeformer.config import from_dict
from generalizeformer.data.domains import DomainDataset
from generalizeformer.errors import DataError

REASON = 200  # letters; some reasons quote whole records
Key = tuple[str, str]
"""A method's name and a stream's key."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A cell and its records so far."""

    cell: Cell
    records: tuple[Record, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    seconds: float = 0.0  # trained and evaluated, in all tries
    images: tuple[Shown, ...] = ()  # the domains that all of it was made on; (): nobody knows
    commit: str | None = None  # older files': of the code that made all their refusals

    def __post_init__(self) -> None:
        if self.commit is not None:
            own = tuple(replace(r, commit=r.commit or self.commit) for r in self.refusals)
            object.__setattr__(self, "refusals", own)
            object.__setattr__(self, "commit", None)

    def done(self, commit: str | None, again: Collection[str] = ()) -> set[Key]:
        """What need not be done: all records, and what this very code was refused.

        `again`: methods whose records count only where this very code made them.
        """
        answers: list[Record | Refusal] = [
            record
            for record in self.records
            if record.method not in again or (commit is not None and commit == record.commit)
        ]
        if commit is not None:
            answers += [refusal for refusal in self.refusals if refusal.commit == commit]
        return {(answer.method, answer.stream) for answer in answers}

    def told(self, first: Sequence[str]) -> tuple[Record, ...]:
        """All records: the smallest batches first, stream after stream, these methods, then the others by name."""
        streams = list(dict.fromkeys(record.stream for record in self.records))
        methods = [*first, *sorted({record.method for record in self.records} - {*first})]

        def place(record: Record) -> tuple[int, int, int]:
            stream, method = streams.index(record.stream), methods.index(record.method)
            return record.batch_size, stream, method

        return tuple(sorted(self.records, key=place))

    def plus(self, answer: Record | Refusal) -> "Stored":
        """With this answer, in the place of an older one of the same method on the same stream."""
        key = (answer.method, answer.stream)
        records = tuple(r for r in self.records if (r.method, r.stream) != key)
        refusals = tuple(r for r in self.refusals if (r.method, r.stream) != key)
        if isinstance(answer, Record):
            return replace(self, records=(*records, answer), refusals=refusals)
        return replace(self, records=records, refusals=(*refusals, answer))


def suite_folder(folder: Path, suite: str) -> Path:
    """Where a suite has its results, in the folder of the models and backbones that all suites share."""
    return folder if suite == "main" else folder / suite


def place(folder: Path, cell: Cell) -> Path:
    """The file of a cell."""
    return suite_folder(folder, cell.suite) / "cells" / f"{cell.name}-{cell.basis()[:12]}.json"


def beside(folder: Path, cell: Cell) -> list[Stored]:
    """What is there of all trainings on the cell's source model, in its suite."""
    source = cell.source_model
    names = f"{source.name.removesuffix(source.training)}*.json"
    found = (_stored(path) for path in sorted(place(folder, cell).parent.glob(names)))
    return [s for s in found if s is not None and s.cell.source_model.basis() == source.basis()]


def alike(folder: Path, cells: Sequence[Cell], domains: Collection[str]) -> list[Cell]:
    """What else of these domains is stored in the suites of these cells, and is told together with them."""
    kinds, known = {cell.kind() for cell in cells}, {place(folder, cell) for cell in cells}
    places = dict.fromkeys(path.parent for path in known)
    paths = [path for parent in places for path in sorted(parent.glob("*.json"))]
    found = [s.cell for s in map(_stored, paths) if s is not None and s.cell.kind() in kinds]
    return [c for c in found if c.domains <= {*domains} and place(folder, c) not in known]


def check_images(folder: Path, cells: Iterable[Cell], domains: DomainDataset) -> None:
    """Raises where records of these cells were made on other images under the same names.

    Older files do not know theirs, and are taken as they are.
    """
    for cell in cells:
        stored = read(folder, cell)
        if stored.images:  # only then is it worth looking at all images
            _compare(place(folder, cell), stored.images, shown(cell, domains))


def _compare(path: Path, there: Sequence[Shown], here: Sequence[Shown]) -> None:
    if found := differences(there, here):
        raise DataError(
            f"{path}: its records were made on other images than those given now, of which {', '.join(found)}; give "
            "those of that time (--root), or results a new folder (OUT of `benchmark`, --out of `reproduce`)"
        )


def add(
    folder: Path,
    cell: Cell,
    answer: Record | Refusal,
    seconds: float,
    images: tuple[Shown, ...] = (),
) -> None:
    """Adds an answer, and the time that it took, to what is there by now: other processes add to the same file.

    `images`: what it was made on. A file that does not know that of older answers will not know it of newer ones.
    """
    with atomic.alone(folder / "models" / cell.model_name / "records"):  # no lock among results
        there = read(folder, cell)
        if there.images:
            _compare(place(folder, cell), there.images, images)
        known = there.images if there.records or there.refusals else images
        more = replace(there.plus(answer), seconds=there.seconds + seconds, images=known)
        write(folder, more)


def write(folder: Path, stored: Stored) -> None:
    """The cell's file, which appears whole or not at all."""
    text = json.dumps(asdict(stored), indent=1, ensure_ascii=False)
    atomic.write_text(place(folder, stored.cell), f"{text}\n")


def read(folder: Path, cell: Cell) -> Stored:
    """What is stored of this cell, also in other batch sizes."""
    stored = _stored(place(folder, cell))
    if stored is None:
        return Stored(cell=cell)
    also: dict[str, Any] = cell.recipe.get("also", {})
    # A method that is trained for in another way than its record says has none.
    records = tuple(r for r in stored.records if also.get(r.method, r.training) == r.training)
    return replace(stored, cell=cell, records=records)


def _stored(path: Path) -> Stored | None:
    """What the file tells; None where there is none.

    One that cannot be read is no empty one: what is added to it would replace the records it holds.
    """
    try:
        return from_dict(Stored, json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        reason = shorten(str(error), REASON)
        raise DataError(
            f"{path}: its records cannot be read ({reason}); use the code that wrote them, or move the file away and "
            "they are made again"
        ) from None
