"""The cells of a run: those that its parts ask for, those that are told, and parts that would be told as one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from generalizeformer.cli._parts import Part, told_of
from generalizeformer.errors import UserError

if TYPE_CHECKING:
    from generalizeformer.benchmark.cells import Cell
    from generalizeformer.data.domains import DomainDataset

MOST = 4  # differences that a refusal names


def planned(
    parts: Mapping[str, Part], domains: "DomainDataset", divided: str | None
) -> "dict[str, list[Cell]]":
    """By part, the cells that it asks for."""
    return {name: _of(name, part, domains, divided) for name, part in parts.items()}


def recordable(
    parts: Mapping[str, Part],
    asked: "Mapping[str, Sequence[Cell]]",
    domains: "DomainDataset",
    divided: str | None,
) -> "dict[str, list[Cell]]":
    """By part, also the cells of trainings that no part asks for, as earlier runs may have recorded them.

    They name no methods: what is recorded of any is told.
    """
    wanted = {name: {(c.suite, c.training) for c in cells} for name, cells in asked.items()}
    anybody = set().union(*wanted.values())
    return {
        name: [
            cell
            for cell in _whole(name, part, asked[name], domains, divided)
            if (cell.suite, cell.training) in wanted[name]
            or (cell.suite, cell.training) not in anybody
        ]
        for name, part in parts.items()
    }


def check_rows(
    out: Path, asked: "Mapping[str, Sequence[Cell]]", told: "Mapping[str, Sequence[Cell]]"
) -> None:
    """Raises where two parts would share a row of a table, as its mean or beside each other, but not their settings.

    Cells that nobody asks for are of no matter as long as they have no records.
    """
    from generalizeformer.benchmark.store import place

    known: dict[tuple[str, str], tuple[str, Cell]] = {}
    for name, cells in told.items():
        wanted = {(cell.suite, cell.training) for cell in asked[name]}
        for cell in cells:
            row = cell.suite, cell.training
            if row not in wanted and not place(out, cell).exists():
                continue
            other, first = known.setdefault(row, (name, cell))
            if first.kind() != cell.kind():
                raise UserError(_clash(other, first, name, cell))


def files(cells: "Iterable[Cell]") -> "list[Cell]":
    """One cell for every file of records: parts that only add methods or batch sizes share theirs."""
    return list({(cell.name, cell.basis()): cell for cell in cells}.values())


def _of(name: str, part: Part, domains: "DomainDataset", divided: str | None) -> "list[Cell]":
    with told_of(name):
        return [cell for mine in part.cells(domains, divided).values() for cell in mine]


def _whole(
    name: str,
    part: Part,
    asked: "Sequence[Cell]",
    domains: "DomainDataset",
    divided: str | None,
) -> "list[Cell]":
    """The cells of all trainings; of those asked for where others cannot be, as then they have no records."""
    try:
        return _of(name, replace(part, methods=(), trainings=None), domains, divided)
    except UserError:
        trainings = tuple(dict.fromkeys(cell.training for cell in asked))
        return _of(name, replace(part, methods=(), trainings=trainings), domains, divided)


def _clash(one: str, first: "Cell", other: str, second: "Cell") -> str:
    found = first.differences(second)
    words = ", ".join(found[:MOST]) + (f" and {len(found) - MOST} more" if found[MOST:] else "")
    return (
        f"parts {one!r} and {other!r}: both are told as {second.training} of {second.suite}, but they differ in "
        f"{words}; give both the same, or one of them a plan and a folder of its own"
    )
