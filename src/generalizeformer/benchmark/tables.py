"""Records → rows. Pure: the same records give the same table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Literal

from generalizeformer.benchmark.records import ORACLE, Record, Refusal

TIME = "ms / image"
FEWER = "“(1 of 3)”: of one training only, where others are of three; such a cell is never marked as the best."
"""What a page says above a table whose cells are `written`."""
Values = Mapping[tuple[str, str], list[float]]
"""By method and column, one number for each training seed."""


@dataclass(frozen=True)
class Measure:
    """A number of a record as a column: its head, where it is found, how many digits, and which end is good."""

    head: str
    value: Callable[[Record], float | None]
    digits: int = 1
    good: Literal["high", "low", "neither"] = "neither"  # what a method spends is no contest


def _mean(values: Mapping[str, float]) -> float | None:
    return mean(values.values()) if values else None


MEASURES = (
    Measure("accuracy, %", lambda r: r.accuracy, good="high"),
    Measure("mean over classes, %", lambda r: r.class_accuracy, good="high"),
    Measure("calibration error, %", lambda r: r.calibration_error, good="low"),
    Measure(TIME, lambda r: 1000 * r.seconds / r.images, 2),
    Measure("forwards / image", lambda r: r.forwards, 2),
    Measure("backwards / image", lambda r: r.backwards, 2),
    Measure("peak MiB", lambda r: None if r.memory is None else r.memory / 2**20),
    Measure("sources before, %", lambda r: _mean(r.sources_before)),
    Measure("sources after, %", lambda r: _mean(r.sources_after), good="high"),
)


@dataclass(frozen=True)
class Table:
    """A title, column heads, and rows of text; `best` marks the best cell of each column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: tuple[tuple[int, int], ...]  # (row, column) of the highest values of each column


def accuracy_table(records: Sequence[Record], title: str) -> Table:
    """Methods down, settings across; mean over targets, then mean ± spread over training seeds."""
    methods, settings = method_names(records), list(dict.fromkeys(r.setting for r in records))
    values = {(m, s): seed_means(records, m, s) for m in methods for s in settings}
    plain = table(title, methods, settings, values)
    times = [_milliseconds(records, method) for method in methods]
    rows = tuple((*row, time) for row, time in zip(plain.rows, times, strict=True))
    return Table(title, (*plain.columns, TIME), rows, plain.best)


def target_table(records: Sequence[Record], batch_size: int, title: str) -> Table:
    """Methods down, targets and their mean across, mean ± spread over training seeds, in one batch size; then the time.

    Of the trainings in which the method met all that the others met, so that a row's cells belong together; their
    number stands last. Where there is none, of what it met.
    """
    mine = [r for r in records if r.batch_size == batch_size and len(r.targets) == 1]
    methods, targets = method_names(mine), list(dict.fromkeys(r.targets[0] for r in mine))
    values = {}
    for method in methods:
        met = whole(mine, method)
        values[method, "mean"] = by_seed(met, lambda r: r.accuracy)
        for target in targets:
            here = [r for r in met or of(mine, method) if r.targets == (target,)]
            values[method, target] = by_seed(here, lambda r: r.accuracy)
    plain = table(title, methods, [*targets, "mean"], values, counted=False)
    times = [f"{milliseconds(of(mine, m)):.2f}" for m in methods]
    counts = [str(len(values[method, "mean"])) for method in methods]
    rows = tuple((*row, *more) for row, *more in zip(plain.rows, times, counts, strict=True))
    return Table(title, (*plain.columns, TIME, "trainings"), rows, plain.best)


def gain_table(records: Sequence[Record], title: str) -> Table:
    """Methods down, batch sizes across: what each gains over the plain source on the same stream."""
    gain = gain_over(records, "source")
    others = [method for method in method_names(records) if method != "source"]
    return _by_batch_size(records, others, title, gain, signed=True)


def gain_over(records: Sequence[Record], method: str) -> Callable[[Record], float | None]:
    """What a record has more than that method has on the same stream after the same training; None: it has none."""
    plain = {_circumstances(r): r.accuracy for r in records if r.method == method}

    def gain(record: Record) -> float | None:
        other = plain.get(_circumstances(record))
        return None if other is None else record.accuracy - other

    return gain


def sources_table(records: Sequence[Record], title: str) -> Table:
    """Methods down, batch sizes across: accuracy on the source domains after the target stream."""

    def after(record: Record) -> float | None:
        return mean(record.sources_after.values()) if record.sources_after else None

    return _by_batch_size(records, method_names(records), title, after)


def measures_table(records: Sequence[Record], title: str) -> Table:
    """Methods down, all that was measured across; mean over streams, then mean ± spread over training seeds."""
    methods = method_names(records)
    values = {
        (m, column.head): by_seed(whole(records, m), column.value)
        for m in methods
        for column in MEASURES
    }
    measured = [c for c in MEASURES if any(values[m, c.head] for m in methods)]
    cells = [written([values[m, c.head] for m in methods], digits=c.digits) for c in measured]
    rows = tuple(zip(methods, *cells, strict=True))
    best = tuple(
        (row, number)
        for number, column in enumerate(measured, start=1)
        for row in _best(methods, column, values)
    )
    return Table(title, ("method", *(column.head for column in measured)), rows, best)


def refusal_table(refusals: Sequence[Refusal], title: str) -> Table:
    """Methods that could not take part, where, and why, in their own words; equal words are said once."""
    found: dict[tuple[str, str], list[str]] = {}
    for refused in refusals:
        settings = found.setdefault((refused.method, refused.why), [])
        if refused.setting not in settings:
            settings.append(refused.setting)
    rows = tuple((method, "; ".join(where), why) for (method, why), where in found.items())
    return Table(title, ("method", "setting", "why"), rows, ())


def of(records: Iterable[Record], method: str) -> list[Record]:
    """Those of a method."""
    return [record for record in records if record.method == method]


def method_names(records: Iterable[Record]) -> list[str]:
    """The methods of the records, in their order, oracles last."""
    return sorted(dict.fromkeys(r.method for r in records), key=lambda m: m.endswith(ORACLE))


def batch_sizes(records: Iterable[Record]) -> list[int]:
    """The batch sizes of the records, the smallest first."""
    return sorted({r.batch_size for r in records})


def seed_means(records: Sequence[Record], method: str, setting: str) -> list[float]:
    """For each training seed, the mean accuracy over the setting's streams."""
    here = [r for r in records if r.setting == setting]
    return by_seed(whole(here, method), lambda record: record.accuracy)


def whole(records: Sequence[Record], method: str) -> list[Record]:
    """The method's records of those seeds in which it met all streams that any method met in any seed.

    A mean over fewer targets than the others' is no mean to be compared, be they other methods' or other trainings'.
    """
    met: dict[tuple[str, int], set[tuple[Any, ...]]] = {}
    for record in records:
        stream = (record.targets, record.batch_size, record.order, tuple(record.sources_before))
        met.setdefault((record.method, record.run_seed), set()).add(stream)
    full = set[Any]().union(*met.values())
    return [r for r in records if r.method == method and met[method, r.run_seed] == full]


def by_target(records: Sequence[Record], method: str, setting: str) -> dict[str, float]:
    """Mean accuracy on each target, over streams and seeds."""
    mine = [r for r in records if r.method == method and r.setting == setting]
    targets = dict.fromkeys(target for r in mine for target in r.by_target)
    return {t: mean(r.by_target[t] for r in mine if t in r.by_target) for t in targets}


def _by_batch_size(
    records: Sequence[Record],
    methods: list[str],
    title: str,
    value: Callable[[Record], float | None],
    signed: bool = False,
) -> Table:
    sizes = batch_sizes(records)
    here = {size: [r for r in records if r.batch_size == size] for size in sizes}
    values = {
        (m, f"batches of {s}"): by_seed(whole(here[s], m), value) for m in methods for s in sizes
    }
    return table(title, methods, [f"batches of {size}" for size in sizes], values, signed)


def by_seed(records: Sequence[Record], value: Callable[[Record], float | None]) -> list[float]:
    """For each training seed, the mean over its records that have the value."""
    found: dict[int, list[float]] = {}
    for record in sorted(records, key=lambda record: record.run_seed):
        number = value(record)
        if number is not None:
            found.setdefault(record.run_seed, []).append(number)
    return [mean(numbers) for numbers in found.values()]


def table(
    title: str,
    methods: list[str],
    heads: list[str],
    values: Values,
    signed: bool = False,
    counted: bool = True,
) -> Table:
    """The best of a column is marked; an oracle is never the best, as labels picked it.

    `counted`: cells say where they are of fewer trainings than others of their column.
    """
    columns = [[values[method, head] for method in methods] for head in heads]
    cells = [
        written(column, signed) if counted else [percent(v, signed) for v in column]
        for column in columns
    ]
    rows = tuple(zip(methods, *cells, strict=True))
    honest = [row for row, method in enumerate(methods) if not method.endswith(ORACLE)]
    best = tuple(
        (row, column)
        for column, head in enumerate(heads, start=1)
        for row in _highest({row: values[methods[row], head] for row in honest})
    )
    return Table(title, ("method", *heads), rows, best)


def _best(methods: Sequence[str], column: Measure, values: Values) -> list[int]:
    """The rows that are best in a column. An oracle never is."""
    if column.good == "neither":
        return []
    sign = 1 if column.good == "high" else -1
    return _highest(
        {
            row: [sign * value for value in values[method, column.head]]
            for row, method in enumerate(methods)
            if not method.endswith(ORACLE)
        }
    )


def _highest(values: Mapping[int, list[float]]) -> list[int]:
    """The rows with the highest mean, as printed: two that read the same are equally good.

    Of those with the most trainings: means over fewer are of other models.
    """
    most = max(map(len, values.values()), default=0)
    printed = {row: round(mean(v), 1) for row, v in values.items() if v and len(v) == most}
    return [row for row, value in printed.items() if value == max(printed.values())]


def written(column: Sequence[list[float]], signed: bool = False, digits: int = 1) -> list[str]:
    """The cells of a column; those of fewer trainings than others say so."""
    most = max(map(len, column), default=0)
    counts = [f" ({len(v)} of {most})" if 0 < len(v) < most else "" for v in column]
    cells = [percent(values, signed, digits) for values in column]
    return [f"{cell}{count}" for cell, count in zip(cells, counts, strict=True)]


def percent(values: list[float], signed: bool = False, digits: int = 1) -> str:
    """Mean ± spread over training seeds, as text."""
    if not values:
        return "–"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{number(mean(values), signed, digits)}{spread}"


def number(value: float, signed: bool = True, digits: int = 1) -> str:
    """As text, with its sign where that matters; what reads as nothing is never below it."""
    rounded = round(value, digits) + 0.0  # no -0.0
    return f"{rounded:{'+' if signed else ''}.{digits}f}"


def _circumstances(record: Record) -> tuple[str, int, tuple[str, ...]]:
    """Stream, seed and sources: what methods must have in common to be compared."""
    return record.stream, record.run_seed, tuple(record.sources_before)


def _milliseconds(records: Sequence[Record], method: str) -> str:
    """Over all settings; nothing where it lacks one, as single images take longer than others."""
    mine = of(records, method)
    if {r.setting for r in mine} != {r.setting for r in records}:
        return "–"
    return f"{milliseconds(mine):.2f}"


def milliseconds(records: Sequence[Record]) -> float:
    """For each image, over all records."""
    return 1000 * sum(r.seconds for r in records) / sum(r.images for r in records)
