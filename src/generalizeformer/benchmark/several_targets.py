"""What is told of one model that meets several targets: alone, mixed inside batches, or one after another."""

from collections.abc import Sequence
from typing import Any

from generalizeformer.benchmark.pages import ABOUT_CHOICES, ABOUT_SOURCES, ABOUT_TARGETS
from generalizeformer.benchmark.records import Record
from generalizeformer.benchmark.report import Section
from generalizeformer.benchmark.summary import choices_table
from generalizeformer.benchmark.tables import sources_table, target_table
from generalizeformer.benchmark.ways import ALONE, by_way, summarised, told, way, ways_sections

ABOUT_EACH = f"Every target in a stream of its own. {ABOUT_TARGETS}"


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Percent by method and batch size: by way, what is lost against alone, each target alone, the sources after."""
    return told(records, _entry)


def sections(records: Sequence[Record]) -> list[Section]:
    """The tables, each target by itself, forgetting, the settings chosen, and a picture."""
    return [
        *ways_sections(records, "target", _each_target),
        Section("On the sources, afterwards", ABOUT_SOURCES, sources_table(records, "")),
        Section("Settings", ABOUT_CHOICES, choices_table(records, "")),
    ]


def _each_target(records: Sequence[Record]) -> Section:
    """Of one batch size."""
    size = records[0].batch_size
    return Section(f"Every target, batches of {size}", ABOUT_EACH, target_table(records, size, ""))


def _entry(records: Sequence[Record]) -> dict[str, Any]:
    """One method in one batch size."""
    alone = [record for record in records if way(record) == ALONE]
    names = dict.fromkeys(record.targets[0] for record in alone)
    after = [value for record in records for value in record.sources_after.values()]
    return {
        **summarised(records),
        "targets": {n: by_way([r for r in alone if r.targets == (n,)])[ALONE] for n in names},
        "sources_after": sum(after) / len(after) if after else None,
    }
