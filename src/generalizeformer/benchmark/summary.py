"""Records of a benchmark → the numbers that are told: a summary as plain data, and which settings were chosen."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from generalizeformer import atomic, catalog
from generalizeformer.benchmark.records import ORACLE, Record
from generalizeformer.benchmark.runner import ADAPTERS
from generalizeformer.benchmark.selection import grid
from generalizeformer.benchmark.tables import (
    Table,
    batch_sizes,
    by_seed,
    gain_over,
    method_names,
    milliseconds,
    whole,
)


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Percent by method and batch size: on each target (mean over seeds), their mean, and on the sources after.

    Of each method, the seeds in which it met all that any method met in any; where there is none, nothing is told. The
    gain is over the source model of the same seeds: where methods have met fewer of them, only that can be compared.
    """
    alone = [record for record in records if len(record.targets) == 1]
    methods: dict[str, dict[str, Any]] = {}
    gain = gain_over(alone, "source")
    for size in batch_sizes(alone):
        here = [record for record in alone if record.batch_size == size]
        for method in method_names(here):
            if mine := whole(here, method):
                methods.setdefault(method, {})[str(size)] = _entry(mine, gain)
    return {"methods": {name: methods[name] for name in method_names(alone) if name in methods}}


def write(
    path: Path,
    records: Sequence[Record],
    told: Callable[[Sequence[Record]], dict[str, Any]] = summary,
) -> None:
    """The summary, or what else is told of the records, as a file, which appears whole or not at all."""
    text = json.dumps(told(records), indent=1, ensure_ascii=False)
    atomic.write_text(path, f"{text}\n")


def choices_table(records: Sequence[Record], title: str) -> Table:
    """Methods with a grid down, batch sizes across: the settings that were chosen, and how often."""
    searched = [m for m in method_names(records) if _grid(m)]
    sizes = batch_sizes(records)
    rows = tuple((m, *(_choices(records, m, size) for size in sizes)) for m in searched)
    return Table(title, ("method", *(f"batches of {size}" for size in sizes)), rows, ())


def _entry(records: Sequence[Record], gain: Callable[[Record], float | None]) -> dict[str, Any]:
    """One method in one batch size."""
    names = dict.fromkeys(record.targets[0] for record in records)
    parts = {name: [r for r in records if r.targets == (name,)] for name in names}
    targets = {name: mean(r.accuracy for r in part) for name, part in parts.items()}
    gained = by_seed(records, gain)  # as in the page's table
    after = [value for record in records for value in record.sources_after.values()]
    return {
        "mean": mean(targets.values()),
        "gain": mean(gained) if gained else None,
        "targets": targets,
        "sources_after": mean(after) if after else None,
        "milliseconds": milliseconds(records),
        "seeds": len({record.run_seed for record in records}),
    }


def _grid(method: str) -> tuple[dict[str, Any], ...]:
    """The settings a method was searched over; none where there was no search."""
    name = method.removesuffix(ORACLE)
    entries = grid(name) if name in catalog.names(ADAPTERS) else ()
    return entries if len(entries) > 1 else ()


def _choices(records: Sequence[Record], method: str, batch_size: int) -> str:
    """The chosen settings, the most frequent first."""
    mine = [r for r in records if r.method == method and r.batch_size == batch_size]
    searched = _grid(method)[0].keys()
    words = [  # older records do not know newer settings
        ", ".join(f"{name}={record.settings.get(name, '–')}" for name in searched)
        for record in mine
    ]
    ordered = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{word} ({count} of {len(mine)})" for word, count in ordered) or "–"
