"""Settings of methods chosen without labels of the target, and, marked as such, with them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from generalizeformer import catalog
from generalizeformer.benchmark.records import ORACLE, Record
from generalizeformer.benchmark.remembering import remembering
from generalizeformer.benchmark.runner import ADAPTERS, run
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream
from generalizeformer.errors import DataError


def grid(method: str) -> tuple[dict[str, Any], ...]:
    """The settings that a method is searched over; its defaults alone where its file has no GRID."""
    entries: tuple[dict[str, Any], ...] = getattr(catalog.load(ADAPTERS, method), "GRID", ({},))
    return entries


def choose(
    source: GeneralizeFormer,
    validation: DomainDataset,
    method: str,
    batch_size: int,
    seed: int,
    limit: int | None = None,
) -> dict[str, Any]:
    """The settings that do best on source validation domains, each met as a target of its own.

    Training-domain validation (Gulrajani & Lopez-Paz, 2021) with the accuracy after adaptation, as in T3A's
    protocol. Ties go to the earlier entry. `limit`: images of each domain; None: all.
    """
    found = scores(source, validation, method, batch_size, seed, limit)
    return grid(method)[found.index(max(found))]  # index finds the first


def scores(
    source: GeneralizeFormer,
    validation: DomainDataset,
    method: str,
    batch_size: int,
    seed: int,
    limit: int | None = None,
) -> list[float]:
    """How every entry of the grid does, in its order: percent, mean over the domains."""
    streams = [Stream((name,), batch_size, seed, limit) for name in validation.names]
    with remembering(source, validation, streams) as (lent, read):

        def score(settings: dict[str, Any]) -> float:
            given = (seed, {method: settings}, None, None, read)  # no sources to be asked again
            found = [run(lent, validation, method, s, *given).accuracy for s in streams]
            return sum(found) / len(found)

        return [score(settings) for settings in grid(method)]


def best_in_hindsight(candidates: Sequence[Record]) -> Record:
    """The record of the settings that turned out best on the target: an oracle, and its name says so."""
    if len({(r.method, r.stream, r.run_seed) for r in candidates}) != 1:
        raise DataError(
            f"hindsight: got {len(candidates)} records of different methods, streams or trainings, or none; give "
            "those of one method on one stream"
        )
    best = max(candidates, key=lambda record: record.accuracy)  # max finds the first
    return replace(best, method=f"{best.method}{ORACLE}")
