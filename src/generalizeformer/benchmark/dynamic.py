"""What is told of targets under looks that come alone, mixed inside batches, or one after another."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from generalizeformer.benchmark.records import Record
from generalizeformer.benchmark.report import Section
from generalizeformer.benchmark.tables import FEWER, Table, by_seed, method_names, table, whole
from generalizeformer.benchmark.ways import ALONE, by_way, summarised, told, way, ways_sections

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

ABOUT_LOOKS = "Percent, every look in a stream of its own, mean over the targets. " + FEWER


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Percent by method and batch size: by way, what is lost against alone, each look alone, each target."""
    return told(records, _entry)


def sections(records: Sequence[Record]) -> list[Section]:
    """The tables, each look by itself, and a picture."""
    return ways_sections(records, "look", _each_look)


def _each_look(records: Sequence[Record]) -> Section:
    """Of one batch size."""
    heading = f"Every look, batches of {records[0].batch_size}"
    return Section(heading, ABOUT_LOOKS, _look_table(records))


def _look_table(records: Sequence[Record]) -> Table:
    alone = [record for record in records if way(record) == ALONE]
    methods, looks = method_names(alone), list(dict.fromkeys(map(_look, alone)))
    here = {look: [record for record in alone if _look(record) == look] for look in looks}
    values = {
        (m, look): by_seed(whole(here[look], m), lambda r: r.accuracy)
        for m in methods
        for look in looks
    }
    return table("", methods, looks, values)


def _entry(records: Sequence[Record]) -> dict[str, Any]:
    """One method in one batch size."""
    looks = dict.fromkeys(_look(r) for r in records if way(r) == ALONE)
    names = dict.fromkeys(map(_target, records))
    return {
        **summarised(records),
        "looks": {look: mean(r.accuracy for r in records if _is_alone(r, look)) for look in looks},
        "targets": {t: by_way([r for r in records if _target(r) == t]) for t in names},
    }


def _is_alone(record: Record, look: str) -> bool:
    return way(record) == ALONE and _look(record) == look


def _look(record: Record) -> str:
    return record.targets[0].rpartition("@")[2]


def _target(record: Record) -> str:
    return record.targets[0].rpartition("@")[0]
