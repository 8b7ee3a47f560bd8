"""Targets that come alone, mixed inside batches, or one after another: what is told of each way."""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from generalizeformer.benchmark import figures
from generalizeformer.benchmark.pages import ABOUT_PICTURE
from generalizeformer.benchmark.records import Record
from generalizeformer.benchmark.report import Section
from generalizeformer.benchmark.tables import (
    FEWER,
    Table,
    batch_sizes,
    by_seed,
    method_names,
    table,
    whole,
    written,
)
from generalizeformer.data.streams import PLAIN

ALONE, TOGETHER = "alone", ("mixed", "changing")
ABOUT = (
    "Percent, mean ± spread over trainings. alone: mean over the {0}s, each in a stream of its own; mixed: every batch "
    "holds images of several {0}s; changing: one {0} after another in one stream, with no sign of the change. The "
    "images and their pixels are the same three times. The last columns are what is lost against alone, in points. "
    + FEWER
)


def way(record: Record) -> str:
    """How the targets of a record came: alone, mixed or changing."""
    if record.order != PLAIN:
        return "changing"
    return "mixed" if len(record.targets) > 1 else ALONE


def tables(records: Sequence[Record], title: str) -> list[Table]:
    """For every batch size: methods down; alone, mixed and changing across, and what the latter two lose."""
    sizes = batch_sizes(records)
    return [
        ways_table([r for r in records if r.batch_size == size], f"{title}, batches of {size}")
        for size in sizes
    ]


def ways_table(records: Sequence[Record], title: str) -> Table:
    """The table of one batch size."""
    methods = method_names(records)
    values = {
        (method, name): _seeds(records, method, name)
        for method in methods
        for name in (ALONE, *TOGETHER)
    }
    plain = table(title, methods, [ALONE, *TOGETHER], values)
    lost = [
        written([_less(values[m, ALONE], values[m, name]) for m in methods], signed=True)
        for name in TOGETHER
    ]
    heads = (*plain.columns, *(f"{ALONE} − {name}" for name in TOGETHER))
    rows = tuple((*row, *losses) for row, *losses in zip(plain.rows, *lost, strict=True))
    return Table(title, heads, rows, plain.best)


def ways_sections(
    records: Sequence[Record], thing: str, each: Callable[[Sequence[Record]], Section]
) -> list[Section]:
    """For every batch size its table, and each thing that comes alone or not by itself; then a picture."""
    parts = []
    for size in batch_sizes(records):
        mine, heading = [r for r in records if r.batch_size == size], f"Batches of {size}"
        parts += [Section(heading, ABOUT.format(thing), ways_table(mine, "")), each(mine)]
    drawn = figures.accuracy_bars(records, _words)
    return [*parts, Section(figures.SAME, ABOUT_PICTURE, picture=drawn)]


def _words(record: Record) -> str:
    """A panel's title, in the words of the tables."""
    return f"{way(record)}, batches of {record.batch_size}"


def by_way(records: Sequence[Record]) -> dict[str, float]:
    """The mean of every way that the method could serve."""
    parts = {name: [r for r in records if way(r) == name] for name in (ALONE, *TOGETHER)}
    return {name: mean(r.accuracy for r in part) for name, part in parts.items() if part}


def told(
    records: Sequence[Record], entry: Callable[[Sequence[Record]], dict[str, Any]]
) -> dict[str, Any]:
    """By method and batch size, what `entry` tells of the trainings in which the method met all that anybody met."""
    methods: dict[str, dict[str, Any]] = {}
    for method in method_names(records):
        for size in batch_sizes(records):
            here = [record for record in records if record.batch_size == size]
            if mine := _whole(here, method):
                methods.setdefault(method, {})[str(size)] = entry(mine)
    return {"methods": methods}


def summarised(records: Sequence[Record]) -> dict[str, Any]:
    """One method in one batch size: the mean of every way, what is lost against alone, and of how many trainings."""
    ways = by_way(records)
    lost = {name: ways[ALONE] - ways[name] for name in TOGETHER if {ALONE, name} <= ways.keys()}
    return {**ways, "lost": lost, "seeds": len({record.run_seed for record in records})}


def _whole(records: Sequence[Record], method: str) -> list[Record]:
    """The method's records of seeds in which it met all that anybody met, in every way that it serves at all.

    So what is lost is paired by seed.
    """
    parts = {name: [r for r in records if way(r) == name] for name in (ALONE, *TOGETHER)}
    served = [part for part in parts.values() if method in method_names(part)]
    found = [whole(part, method) for part in served]
    seeds = set.intersection(*({r.run_seed for r in mine} for mine in found)) if found else set()
    return [r for mine in found for r in mine if r.run_seed in seeds]


def _seeds(records: Sequence[Record], method: str, name: str) -> list[float]:
    mine = [record for record in _whole(records, method) if way(record) == name]
    return by_seed(mine, lambda record: record.accuracy)


def _less(more: list[float], fewer: list[float]) -> list[float]:
    """Seed by seed, both in the same order; nothing where one way is not served."""
    if not more or not fewer:
        return []
    return [one - other for one, other in zip(more, fewer, strict=True)]
