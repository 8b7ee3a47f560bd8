"""What is told of models that learned from one domain: every source by itself, and all of them."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from generalizeformer.benchmark import figures
from generalizeformer.benchmark.pages import (
    ABOUT_CHOICES,
    ABOUT_GAIN,
    ABOUT_PICTURE,
    ABOUT_SOURCES,
    ABOUT_TARGETS_AND_GAINS,
)
from generalizeformer.benchmark.records import Record
from generalizeformer.benchmark.report import Section
from generalizeformer.benchmark.summary import choices_table
from generalizeformer.benchmark.summary import summary as of_targets
from generalizeformer.benchmark.tables import (
    FEWER,
    Table,
    batch_sizes,
    by_seed,
    gain_table,
    method_names,
    sources_table,
    table,
    target_table,
    whole,
)

ABOUT = f"Percent, mean ± spread over trainings. {FEWER}"


def by_source(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of every source, which their source validation images tell."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault("+".join(record.sources_before), []).append(record)
    return found


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Percent by method and batch size: for each source what the main suite tells, and the mean over all."""
    told = {source: of_targets(mine)["methods"] for source, mine in by_source(records).items()}
    methods: dict[str, dict[str, Any]] = {}
    for method in method_names(records):
        for size in batch_sizes(records):
            # As with targets: a mean over fewer sources than the others' is no mean to be compared.
            if mine := whole([r for r in records if r.batch_size == size], method):
                methods.setdefault(method, {})[str(size)] = _entry(mine, told, method, str(size))
    return {"methods": methods}


def tables(records: Sequence[Record], title: str) -> list[Table]:
    """For every batch size: methods down, sources across; then for every source its targets across."""
    found = []
    for size in batch_sizes(records):
        words, parts = f"{title}, batches of {size}", by_source(records)
        if len(parts) > 1:
            found.append(_source_table(parts, size, words))
        for source, mine in parts.items():
            found.append(target_table(mine, size, f"{words}, from {source}"))
    return found


def sections(records: Sequence[Record]) -> list[Section]:
    """The tables, gains, forgetting, the settings chosen, and a picture."""
    return [
        *(
            Section(
                told.title.capitalize(),
                ABOUT_TARGETS_AND_GAINS if "trainings" in told.columns else ABOUT,
                told,
            )
            for told in tables(records, "accuracy")
        ),
        Section(figures.SAME, ABOUT_PICTURE, picture=figures.accuracy_bars(records)),
        Section("Gain over the source model", ABOUT_GAIN, gain_table(records, "")),
        Section("On the source, afterwards", ABOUT_SOURCES, sources_table(records, "")),
        Section("Settings", ABOUT_CHOICES, choices_table(records, "")),
    ]


def _source_table(parts: dict[str, list[Record]], batch_size: int, title: str) -> Table:
    every = [record for mine in parts.values() for record in mine]
    columns = {f"from {source}": mine for source, mine in parts.items()} | {"mean": every}
    methods = method_names(every)
    values = {
        (m, head): by_seed(
            whole([r for r in mine if r.batch_size == batch_size], m), lambda r: r.accuracy
        )
        for m in methods
        for head, mine in columns.items()
    }
    return table(title, methods, list(columns), values)


def _entry(
    records: Sequence[Record], told: dict[str, Any], method: str, size: str
) -> dict[str, Any]:
    """One method in one batch size: the mean over the seeds of all sources, and each source over its own."""
    return {
        "mean": mean(record.accuracy for record in records),
        "sources": {s: of[method][size] for s, of in told.items() if size in of.get(method, {})},
        "seeds": len({record.run_seed for record in records}),
    }
