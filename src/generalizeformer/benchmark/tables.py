"""Records → rows. Pure: the same records give the same table."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from generalizeformer.benchmark.records import Record


@dataclass(frozen=True)
class Table:
    """A title, column heads, and rows of text; `best` marks the best cell of each column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: tuple[tuple[int, int], ...]  # (row, column) of the highest values of each column


def accuracy_table(records: Sequence[Record], title: str) -> Table:
    """Methods down, settings across; mean over targets, then mean ± spread over training seeds."""
    methods = list(dict.fromkeys(record.method for record in records))
    settings = list(dict.fromkeys(record.setting for record in records))
    values = {(m, s): seed_means(records, m, s) for m in methods for s in settings}
    rows = tuple(
        (method, *(_cell(values[method, s]) for s in settings), _milliseconds(records, method))
        for method in methods
    )
    best = tuple(
        (row, column)
        for column, setting in enumerate(settings, start=1)
        for row in _highest([values[method, setting] for method in methods])
    )
    return Table(title, ("method", *settings, "ms / image"), rows, best)


def seed_means(records: Sequence[Record], method: str, setting: str) -> list[float]:
    """For each training seed, the mean accuracy over the setting's streams."""
    mine = [r for r in records if r.method == method and r.setting == setting]
    seeds = sorted({r.run_seed for r in mine})
    return [mean(r.accuracy for r in mine if r.run_seed == seed) for seed in seeds]


def by_target(records: Sequence[Record], method: str, setting: str) -> dict[str, float]:
    """Mean accuracy on each target, over streams and seeds."""
    mine = [r for r in records if r.method == method and r.setting == setting]
    targets = dict.fromkeys(target for r in mine for target in r.by_target)
    return {t: mean(r.by_target[t] for r in mine if t in r.by_target) for t in targets}


def _highest(values: list[list[float]]) -> list[int]:
    """The rows with the highest mean, as printed: two that read the same are equally good."""
    printed = [round(mean(seeds), 1) if seeds else float("-inf") for seeds in values]
    return [row for row, value in enumerate(printed) if value == max(printed)]


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def _milliseconds(records: Sequence[Record], method: str) -> str:
    mine = [r for r in records if r.method == method]
    return f"{1000 * sum(r.seconds for r in mine) / sum(r.images for r in mine):.2f}"
