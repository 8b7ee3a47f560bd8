"""Runs methods over streams. The only place where labels meet logits."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from generalizeformer import catalog
from generalizeformer.adapters._protocol import Adapter, GroupedAdapter
from generalizeformer.benchmark.records import Record
from generalizeformer.config import from_dict
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream

ADAPTERS = "generalizeformer.adapters"
TOGETHER = 320  # images of a grouped call: bounds memory, changes no answer
Report = Callable[[str, Stream], None]
Settings = Mapping[str, Mapping[str, Any]]
"""Settings by method; a method that is not there runs with its defaults."""


def build_adapter(
    name: str, source: GeneralizeFormer, **settings: Any
) -> tuple[Adapter, dict[str, Any]]:
    """The method of that file, and the settings it runs with."""
    module = catalog.load(ADAPTERS, name)
    config = from_dict(module.Config, settings)
    adapter: Adapter = module.build(source, config)
    return adapter, asdict(config)


def compare(
    source: GeneralizeFormer,
    dataset: DomainDataset,
    methods: Sequence[str],
    streams: Sequence[Stream],
    run_seed: int,
    report: Report | None = None,
    settings: Settings | None = None,
) -> list[Record]:
    """Every method on every stream, each from the same source model and freshly built."""
    for stream in streams:  # one that cannot flow is told before the first method runs
        stream.arrivals(dataset)
    records = []
    for stream in streams:
        for method in methods:
            if report is not None:
                report(method, stream)
            records.append(run(source, dataset, method, stream, run_seed, settings))
    return records


def run(
    source: GeneralizeFormer,
    dataset: DomainDataset,
    method: str,
    stream: Stream,
    run_seed: int,
    settings: Settings | None = None,
) -> Record:
    """One method on one stream: the images go in, the truth is kept here."""
    adapter, used = build_adapter(method, source, **(settings or {}).get(method, {}))
    device, prepare = next(source.parameters()).device, source.card.preprocessing
    # Many batches at once where the method keeps no state.
    together = TOGETHER if isinstance(adapter, GroupedAdapter) else stream.batch_size
    right, where, seconds = [], [], 0.0
    # In a thread of its own the method finds nothing but its arguments on the stack: no truth, no dataset.
    with ThreadPoolExecutor(max_workers=1) as worker:
        for chunk in stream.chunks(dataset, together):
            images, groups = prepare(chunk.images.to(device)), chunk.groups.to(device)
            answers, spent = worker.submit(_timed, adapter, images, groups).result()
            seconds += spent
            right.append(answers == chunk.truth.labels.cpu())
            where.append(chunk.truth.domains.cpu())
    return Record(
        method=method,
        targets=stream.targets,
        batch_size=stream.batch_size,
        seed=stream.seed,
        run_seed=run_seed,
        images=sum(map(len, right)),
        accuracy=100 * torch.cat(right).float().mean().item(),
        by_target=_scores(stream, torch.cat(right), torch.cat(where)),
        seconds=seconds,
        settings=used,
        order=stream.order,
        order_settings=dict(stream.settings),
        stream=stream.key(),
    )


def _timed(adapter: Adapter, images: Tensor, groups: Tensor) -> tuple[Tensor, float]:
    """The classes that the method answers, and the seconds it took."""
    started = time.perf_counter()
    answers = _answer(adapter, images, groups).argmax(1).cpu()  # reading waits for the device
    return answers, time.perf_counter() - started


@torch.no_grad()
def _answer(adapter: Adapter, images: Tensor, groups: Tensor) -> Tensor:
    if isinstance(adapter, GroupedAdapter):
        return adapter.predict_groups(images, groups)
    return adapter.step(images)


def _scores(stream: Stream, right: Tensor, where: Tensor) -> dict[str, float]:
    """Percent per target. A short stream may hold no image of a target, which then has no score."""
    visits: dict[str, list[Tensor]] = {target: [] for target in stream.targets}
    for number, target in enumerate(stream.targets):
        visits[target].append(right[where == number])
    parts = {target: torch.cat(visited) for target, visited in visits.items()}
    return {target: 100 * part.float().mean().item() for target, part in parts.items() if len(part)}
