"""What is told of targets under looks that come alone, mixed inside batches, or one after another."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from generalizeformer.benchmark import figures
from generalizeformer.benchmark.records import Record
from generalizeformer.benchmark.report import Section
from generalizeformer.benchmark.tables import (
    Table,
    batch_sizes,
    by_seed,
    method_names,
    percent,
    table,
    whole,
)
from generalizeformer.data.streams import PLAIN

LOOKS = (
    "rotation:30",
    "rotation:-30",
    "look:0",
    "look:5",
    "look:8",
    "fog:3",
    "gaussian_noise:3",
    "motion_blur:3",
)
"""Two turns, three casts of colour and contrast, three corruptions."""

ALONE, TOGETHER = "alone", ("mixed", "changing")
ABOUT = (
    "Percent, mean ± spread over trainings. alone: mean over the looks, each in a stream of its own; mixed: every "
    "batch holds images of several looks; changing: one look after another in one stream, with no sign of the change. "
    "The images and their pixels are the same three times. The last columns are what is lost against alone, in points."
)
ABOUT_LOOKS = "Percent, every look in a stream of its own, mean over the targets."


def way(record: Record) -> str:
    """How the looks of a record came: alone, mixed or changing."""
    if record.order != PLAIN:
        return "changing"
    return "mixed" if len(record.targets) > 1 else ALONE


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Percent by method and batch size: by way, what is lost against alone, each look alone, each target."""
    methods: dict[str, dict[str, Any]] = {}
    for method in method_names(records):
        for size in batch_sizes(records):
            here = [record for record in records if record.batch_size == size]
            if mine := _whole(here, method):
                methods.setdefault(method, {})[str(size)] = _entry(mine)
    return {"methods": methods}


def tables(records: Sequence[Record], title: str) -> list[Table]:
    """For every batch size: methods down; alone, mixed and changing across, and what the latter two lose."""
    sizes = batch_sizes(records)
    return [
        _table([r for r in records if r.batch_size == size], f"{title}, batches of {size}")
        for size in sizes
    ]


def sections(records: Sequence[Record]) -> list[Section]:
    """The tables, each look by itself, and a picture."""
    parts = []
    for size in batch_sizes(records):
        mine = [r for r in records if r.batch_size == size]
        parts.append(Section(f"Batches of {size}", ABOUT, _table(mine, "")))
        parts.append(Section(f"Every look, batches of {size}", ABOUT_LOOKS, _look_table(mine)))
    return [*parts, Section("The same as a picture", picture=figures.accuracy_bars(records))]


def _table(records: Sequence[Record], title: str) -> Table:
    methods = method_names(records)
    values = {
        (method, name): _seeds(records, method, name)
        for method in methods
        for name in (ALONE, *TOGETHER)
    }
    plain = table(title, methods, [ALONE, *TOGETHER], values)
    lost = [
        [
            percent(_less(values[method, ALONE], values[method, name]), signed=True)
            for name in TOGETHER
        ]
        for method in methods
    ]
    heads = (*plain.columns, *(f"{ALONE} − {name}" for name in TOGETHER))
    rows = tuple((*row, *losses) for row, losses in zip(plain.rows, lost, strict=True))
    return Table(title, heads, rows, plain.best)


def _look_table(records: Sequence[Record]) -> Table:
    alone = [record for record in records if way(record) == ALONE]
    methods, looks = method_names(alone), list(dict.fromkeys(map(_look, alone)))
    values = {
        (m, look): by_seed(
            [r for r in alone if r.method == m and _look(r) == look], lambda r: r.accuracy
        )
        for m in methods
        for look in looks
    }
    return table("", methods, looks, values)


def _seeds(records: Sequence[Record], method: str, name: str) -> list[float]:
    mine = [record for record in _whole(records, method) if way(record) == name]
    return by_seed(mine, lambda record: record.accuracy)


def _whole(records: Sequence[Record], method: str) -> list[Record]:
    """The method's records of seeds in which it met all that anybody met, in every way that it serves at all.

    So what is lost is paired by seed.
    """
    parts = {name: [r for r in records if way(r) == name] for name in (ALONE, *TOGETHER)}
    served = [part for part in parts.values() if method in method_names(part)]
    found = [whole(part, method) for part in served]
    seeds = set.intersection(*({r.run_seed for r in mine} for mine in found)) if found else set()
    return [r for mine in found for r in mine if r.run_seed in seeds]


def _less(more: list[float], fewer: list[float]) -> list[float]:
    """Seed by seed, both in the same order; nothing where one way is not served."""
    if not more or not fewer:
        return []
    return [one - other for one, other in zip(more, fewer, strict=True)]


def _entry(records: Sequence[Record]) -> dict[str, Any]:
    """One method in one batch size."""
    looks = dict.fromkeys(_look(r) for r in records if way(r) == ALONE)
    names = dict.fromkeys(map(_target, records))
    ways = _ways(records)
    return {
        **ways,
        "lost": {
            name: ways[ALONE] - ways[name] for name in TOGETHER if {ALONE, name} <= ways.keys()
        },
        "looks": {look: _mean([r for r in records if _is_alone(r, look)]) for look in looks},
        "targets": {t: _ways([r for r in records if _target(r) == t]) for t in names},
        "seeds": len({record.run_seed for record in records}),
    }


def _ways(records: Sequence[Record]) -> dict[str, float]:
    """The mean of every way that the method could serve."""
    parts = {name: [r for r in records if way(r) == name] for name in (ALONE, *TOGETHER)}
    return {name: _mean(part) for name, part in parts.items() if part}


def _mean(records: Sequence[Record]) -> float:
    return mean(record.accuracy for record in records)


def _is_alone(record: Record, look: str) -> bool:
    return way(record) == ALONE and _look(record) == look


def _look(record: Record) -> str:
    return record.targets[0].rpartition("@")[2]


def _target(record: Record) -> str:
    return record.targets[0].rpartition("@")[0]
