"""What is told of ablations: gains over the source model, and what each change costs against the full model."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from generalizeformer.benchmark import figures
from generalizeformer.benchmark.intervals import Interval, interval, standard_error
from generalizeformer.benchmark.pages import ABOUT_SOURCES, ABOUT_TARGETS
from generalizeformer.benchmark.records import Record
from generalizeformer.benchmark.report import Section
from generalizeformer.benchmark.summary import summary as of_targets
from generalizeformer.benchmark.tables import (
    FEWER,
    Table,
    batch_sizes,
    by_seed,
    gain_over,
    method_names,
    number,
    sources_table,
    target_table,
    whole,
    written,
)

FULL = "generalizeformer"
HEADS = ("method", "accuracy, %", "gain over source", "difference to the full model")
ABOUT = (
    "Every row changes one thing and trains φ anew on the same backbones; generalizeformer_paper has "
    "the paper's. Accuracies are mean ± spread over trainings, gains percentage points over the source model, "
    "mean ± standard error over trainings. Differences are paired, target by target and seed by seed, with their 95 % "
    f"interval (Student's t over all pairs). {FEWER}"
)


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """What the main suite tells, with gains, their errors, and differences to the full model with intervals."""
    told = of_targets(records)
    for method, sizes in told["methods"].items():
        for size, entry in sizes.items():
            mine = [r for r in records if r.batch_size == int(size)]
            entry |= _compared(mine, method)
    return told


def tables(records: Sequence[Record], title: str) -> list[Table]:
    """For every batch size: methods down; accuracy, gain and difference across."""
    return [
        _table([r for r in records if r.batch_size == size], f"{title}, batches of {size}")
        for size in batch_sizes(records)
    ]


def sections(records: Sequence[Record]) -> list[Section]:
    """The tables, the differences as a picture, every target, and forgetting."""
    parts = []
    for size in batch_sizes(records):
        mine = [r for r in records if r.batch_size == size]
        known = {m: difference(mine, m) for m in method_names(mine) if m != "source"}
        found = {method: told for method, told in known.items() if told is not None}
        picture = figures.interval_lines(found) if found else None
        parts.append(Section(f"Batches of {size}", ABOUT, _table(mine, ""), picture))
        told = target_table(mine, size, "")
        parts.append(Section(f"Every target, batches of {size}", ABOUT_TARGETS, told))
    return [
        *parts,
        Section("On the sources, afterwards", ABOUT_SOURCES, sources_table(records, "")),
    ]


def gains(records: Sequence[Record], method: str) -> list[float]:
    """For every seed, the mean gain over the source model."""
    return by_seed(whole(records, method), gain_over(records, "source"))


def difference(records: Sequence[Record], method: str) -> Interval | None:
    """Of a method to the full model, over all seeds and targets; None where there are fewer than two pairs."""
    return None if method == FULL else interval(_pairs(records, method))


def _pairs(records: Sequence[Record], method: str) -> list[float]:
    """One difference to the full model for every seed and target."""
    less = gain_over(records, FULL)
    found = [less(record) for record in whole(records, method)]
    return [value for value in found if value is not None]


def _table(records: Sequence[Record], title: str) -> Table:
    methods = method_names(records)
    accuracies = written([by_seed(whole(records, m), lambda r: r.accuracy) for m in methods])
    others = [_told(records, method) for method in methods]
    rows = tuple(
        (m, cell, *more) for m, cell, more in zip(methods, accuracies, others, strict=True)
    )
    return Table(title, HEADS, rows, ())


def _told(records: Sequence[Record], method: str) -> tuple[str, str]:
    """Gain and difference."""
    if method == "source":
        return "–", "–"
    return _gain(gains(records, method)), _difference(records, method)


def _gain(values: list[float]) -> str:
    error = standard_error(values)
    spread = "" if error is None else f" ± {error:.1f}"
    return f"{number(mean(values))}{spread}" if values else "–"


def _difference(records: Sequence[Record], method: str) -> str:
    pairs, told = _pairs(records, method), difference(records, method)
    if method == FULL or not pairs:
        return "–"
    reach = "" if told is None else f" ({number(told.low)} to {number(told.high)})"
    return f"{number(mean(pairs))}{reach}"


def _compared(records: Sequence[Record], method: str) -> dict[str, Any]:
    gained, told = gains(records, method), difference(records, method)
    return {
        "gain": mean(gained) if gained else None,
        "gain_error": standard_error(gained),
        "difference": None if told is None else told.mean,
        "interval": None if told is None else [told.low, told.high],
        "pairs": 0 if method == FULL else len(_pairs(records, method)),
    }
