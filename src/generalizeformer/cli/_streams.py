"""What arrives in an evaluation: from flags, from a published scenario, or from stored files."""

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from generalizeformer.errors import DataError

if TYPE_CHECKING:
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.data.streams import Stream

Scenario = Literal[
    "continual_corruptions",
    "gradual_corruptions",
    "mixed_corruptions",
    "practical_corruptions",
    "gradual_rotation",
    "recurring",
    "correlated",
]


def streams(
    targets: Sequence[str],
    batch_sizes: Sequence[int],
    mixed: bool,
    limit: int | None,
    seed: int,
    *,
    single: bool = True,
    **order: Any,
) -> "list[Stream]":
    """Every target by itself in every batch size; then all of them in one stream, in the largest."""
    from generalizeformer.data.streams import Stream

    if not batch_sizes:
        raise DataError("batch sizes: none was given; give at least one, such as 20")
    alone = dict.fromkeys(targets) if single else ()
    arrivals = [Stream((t,), b, seed, limit, **order) for b in batch_sizes for t in alone]
    if mixed and len(targets) > 1:
        arrivals.append(Stream(tuple(targets), max(batch_sizes), seed, limit, **order))
    if not arrivals:
        raise DataError("streams: none is left; leave out --no-single, or name several targets")
    return arrivals


def staged(
    scenario: Scenario,
    targets: Sequence[str],
    batch_sizes: Sequence[int],
    limit: int | None,
    seed: int,
) -> "list[Stream]":
    """The scenario in every batch size: for every target, or with all of them together, as it is published."""
    from generalizeformer.data import scenarios

    make = getattr(scenarios, scenario)
    alone = "domain" in signature(make).parameters
    subjects: Sequence[Any] = targets if alone else [tuple(targets)]
    made = [make(s, batch_size=b, seed=seed) for b in batch_sizes for s in subjects]
    return [replace(stream, limit=limit) for stream in made]


def replayed(files: Sequence[Path]) -> "list[Stream]":
    """The streams that an evaluation has stored."""
    from generalizeformer.data.arrivals import load

    return [load(file) for file in files]


def store(folder: Path, arrivals: "Sequence[Stream]", domains: "DomainDataset") -> None:
    """Every stream as a file under its key, so that it can be replayed anywhere."""
    from generalizeformer.data.arrivals import save

    for stream in arrivals:
        save(folder / f"{stream.key()[:16]}.safetensors", stream, domains)
