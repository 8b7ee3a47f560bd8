"""Runs methods over streams. The only place where labels meet logits."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from generalizeformer import catalog
from generalizeformer.adapters._protocol import Adapter, GroupedAdapter
from generalizeformer.benchmark.records import Record
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream, Truth

ADAPTERS = "generalizeformer.adapters"
TOGETHER = 320  # images of a grouped call: bounds memory, changes no answer
Report = Callable[[str, Stream], None]


def build_adapter(
    name: str, source: GeneralizeFormer, **settings: Any
) -> tuple[Adapter, dict[str, Any]]:
    """The method of that file, and the settings it runs with."""
    module = catalog.load(ADAPTERS, name)
    config = module.Config(**settings)
    adapter: Adapter = module.build(source, config)
    return adapter, asdict(config)


def compare(
    source: GeneralizeFormer,
    dataset: DomainDataset,
    methods: Sequence[str],
    streams: Sequence[Stream],
    run_seed: int,
    report: Report | None = None,
) -> list[Record]:
    """Every method on every stream, each from the same source model and freshly built."""
    records = []
    for stream in streams:
        for method in methods:
            if report is not None:
                report(method, stream)
            records.append(run(source, dataset, method, stream, run_seed))
    return records


def run(
    source: GeneralizeFormer, dataset: DomainDataset, method: str, stream: Stream, run_seed: int
) -> Record:
    """One method on one stream: the images go in, the truth is kept here."""
    adapter, settings = build_adapter(method, source)
    answers, labels, domains, seconds = [], [], [], 0.0
    for images, truth, answer in _calls(adapter, source, dataset, stream):
        started = time.perf_counter()
        answers.append(answer(images).argmax(1).cpu())  # reading the answer waits for the device
        seconds += time.perf_counter() - started
        labels.append(truth.labels.cpu())
        domains.append(truth.domains.cpu())
    right = (torch.cat(answers) == torch.cat(labels)).float()
    where = torch.cat(domains)
    return Record(
        method=method,
        targets=stream.targets,
        batch_size=stream.batch_size,
        seed=stream.seed,
        run_seed=run_seed,
        images=len(right),
        accuracy=100 * right.mean().item(),
        by_target={t: 100 * right[where == dataset.index(t)].mean().item() for t in stream.targets},
        seconds=seconds,
        settings=settings,
    )


def _calls(
    adapter: Adapter, source: GeneralizeFormer, dataset: DomainDataset, stream: Stream
) -> Iterator[tuple[Tensor, Truth, Callable[[Tensor], Tensor]]]:
    """(images, truth, how to answer them): many batches at once where the method keeps no state."""
    device, prepare = next(source.parameters()).device, source.card.preprocessing
    if isinstance(adapter, GroupedAdapter):
        for chunk in stream.chunks(dataset, TOGETHER):
            groups = chunk.groups.to(device)
            answer = torch.no_grad()(lambda x, g=groups: adapter.predict_groups(x, g))
            yield prepare(chunk.images.to(device)), chunk.truth, answer
        return
    for batch in stream.batches(dataset):
        yield prepare(batch.images.to(device)), batch.truth, adapter.step
