"""Runs methods over streams. The only place where labels meet logits."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int64
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
Ask = Callable[[Adapter, Tensor, Tensor], Tensor]
"""How a method is asked: images and their groups in, logits out."""


class Scored(NamedTuple):
    """What came of a stream: which answers were right, of which target, and the seconds spent in the method."""

    right: Bool[Tensor, " n"]
    where: Int64[Tensor, " n"]
    seconds: float


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
    sources: DomainDataset | None = None,
) -> Record:
    """One method on one stream: the images go in, the truth is kept here.

    `sources`: source validation images, which the plain source model answers before and the method after the
    stream, in batches of the same size.
    """
    adapter, used = build_adapter(method, source, **(settings or {}).get(method, {}))
    scored = _score(adapter, _learn, source, dataset, stream)
    before, after = {}, {}
    if sources is not None:
        before = _recalled(build_adapter("source", source)[0], source, sources, stream)
        after = _recalled(adapter, source, sources, stream)
    return Record(
        method=method,
        targets=stream.targets,
        batch_size=stream.batch_size,
        seed=stream.seed,
        run_seed=run_seed,
        images=len(scored.right),
        accuracy=_percent(scored.right),
        by_target=_by_target(stream, scored),
        seconds=scored.seconds,
        settings=used,
        order=stream.order,
        order_settings=dict(stream.settings),
        stream=stream.key(),
        sources_before=before,
        sources_after=after,
    )


def _score(
    adapter: Adapter, ask: Ask, source: GeneralizeFormer, dataset: DomainDataset, stream: Stream
) -> Scored:
    """The stream answered by the method, and the answers held against the truth."""
    device, prepare = next(source.parameters()).device, source.card.preprocessing
    # Many batches at once where the method keeps no state.
    together = TOGETHER if isinstance(adapter, GroupedAdapter) else stream.batch_size
    right, where, seconds = [], [], 0.0
    # In a thread of its own the method finds nothing but its arguments on the stack: no truth, no dataset.
    with ThreadPoolExecutor(max_workers=1) as worker:
        for chunk in stream.chunks(dataset, together):
            images, groups = prepare(chunk.images.to(device)), chunk.groups.to(device)
            answers, spent = worker.submit(_timed, ask, adapter, images, groups).result()
            seconds += spent
            right.append(answers == chunk.truth.labels.cpu())
            where.append(chunk.truth.domains.cpu())
    return Scored(torch.cat(right), torch.cat(where), seconds)


def _recalled(
    adapter: Adapter, source: GeneralizeFormer, sources: DomainDataset, stream: Stream
) -> dict[str, float]:
    """Percent on every source domain, in shuffled batches of the stream's size; the method learns nothing."""
    visits = {name: Stream((name,), stream.batch_size, stream.seed) for name in sources.names}
    return {
        name: _percent(_score(adapter, _recall, source, sources, visit).right)
        for name, visit in visits.items()
    }


def _timed(ask: Ask, adapter: Adapter, images: Tensor, groups: Tensor) -> tuple[Tensor, float]:
    """The classes that the method answers, and the seconds it took."""
    started = time.perf_counter()
    answers = ask(adapter, images, groups).argmax(1).cpu()  # reading waits for the device
    return answers, time.perf_counter() - started


@torch.no_grad()
def _learn(adapter: Adapter, images: Tensor, groups: Tensor) -> Tensor:
    if isinstance(adapter, GroupedAdapter):
        return adapter.predict_groups(images, groups)
    return adapter.step(images)


@torch.no_grad()
def _recall(adapter: Adapter, images: Tensor, groups: Tensor) -> Tensor:
    if isinstance(adapter, GroupedAdapter):
        return adapter.predict_groups(images, groups)
    return adapter.predict(images)


def _by_target(stream: Stream, scored: Scored) -> dict[str, float]:
    """Percent per target. A short stream may hold no image of a target, which then has no score."""
    visits: dict[str, list[Tensor]] = {target: [] for target in stream.targets}
    for number, target in enumerate(stream.targets):
        visits[target].append(scored.right[scored.where == number])
    parts = {target: torch.cat(visited) for target, visited in visits.items()}
    return {target: _percent(part) for target, part in parts.items() if len(part)}


def _percent(right: Bool[Tensor, " n"]) -> float:
    return 100 * int(right.sum()) / len(right)
