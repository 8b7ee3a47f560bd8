"""Runs methods over streams. The only place where labels meet logits."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from generalizeformer import catalog
from generalizeformer.adapters._protocol import Adapter, GroupedAdapter
from generalizeformer.benchmark.measures import calibration_error, percent, percent_by
from generalizeformer.benchmark.passes import Passes
from generalizeformer.benchmark.records import Record, Refusal, refusal
from generalizeformer.config import from_dict
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Groups, Images
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream, Truth
from generalizeformer.errors import UserError

ADAPTERS = "generalizeformer.adapters"
TOGETHER = 64  # images of a grouped call: bounds memory, changes no answer
# In a thread of its own a method finds nothing but its arguments on the stack: no truth, no dataset. Always the same
# thread, so that what CUDA libraries set up for each thread is set up once.
ALONE = ThreadPoolExecutor(max_workers=1)
Report = Callable[[str, Stream], None]
Refused = Callable[[Refusal], None]
Settings = Mapping[str, Mapping[str, Any]]
"""Settings by method; a method that is not there runs with its defaults."""
Ask = Callable[[Adapter, Tensor, Tensor], Tensor]
"""How a method is asked: images and their groups in, logits out."""


class Arrival(NamedTuple):
    """Consecutive batches as the model takes them, on its device; apart from them the truth."""

    images: Images
    groups: Groups
    truth: Truth


Read = Callable[[GeneralizeFormer, DomainDataset, Stream, int], Iterable[Arrival]]
"""How a stream's images come to the model, as many batches at once as fit in a number of images."""


class Cost(NamedTuple):
    """What a method spent on a stream: seconds, passes through a backbone (passes.py), bytes where they are known."""

    seconds: float
    forwards: int
    backwards: int
    peak: int | None  # allocated on the GPU, by whomever


class Scored(NamedTuple):
    """What came of a stream: which answers were right, how sure, of which class and target, and what they cost."""

    right: Bool[Tensor, " n"]
    confidence: Float64[Tensor, " n"]
    labels: Int64[Tensor, " n"]
    where: Int64[Tensor, " n"]
    cost: Cost


def build_adapter(
    name: str, source: GeneralizeFormer, **settings: Any
) -> tuple[Adapter, dict[str, Any]]:
    """The method of that file, and the settings it runs with."""
    module = catalog.load(ADAPTERS, name)
    config = from_dict(module.Config, settings)
    adapter: Adapter = module.build(source, config)
    return adapter, asdict(config)


def arriving(
    source: GeneralizeFormer, dataset: DomainDataset, stream: Stream, together: int
) -> Iterator[Arrival]:
    """The usual way: read and prepared when their turn comes."""
    device, prepare = next(source.parameters()).device, source.card.preprocessing
    for chunk in stream.chunks(dataset, together):
        yield Arrival(prepare(chunk.images.to(device)), chunk.groups.to(device), chunk.truth)


def compare(
    source: GeneralizeFormer,
    dataset: DomainDataset,
    methods: Sequence[str],
    streams: Sequence[Stream],
    run_seed: int,
    report: Report | None = None,
    settings: Settings | None = None,
    sources: DomainDataset | None = None,
    refused: Refused | None = None,
) -> list[Record]:
    """Every method on every stream, each from the same source model and freshly built.

    `refused` is told of a method that cannot serve the model or a stream's batches, and the comparison goes on
    without it; where nobody is to be told, that ends the comparison.
    """
    for stream in streams:  # one that cannot flow is told before the first method runs
        stream.arrivals(dataset)
    records = []
    plain: dict[Any, dict[str, float]] = {}  # the same for all methods: asked once
    for stream in streams:
        visit = (stream.batch_size, stream.seed, stream.limit)
        for method in methods:
            if report is not None:
                report(method, stream)
            given = (method, stream, run_seed, settings, sources, plain.get(visit))
            try:
                records.append(run(source, dataset, *given))
                plain[visit] = records[-1].sources_before
            except UserError as error:
                if refused is None:
                    raise
                refused(refusal(method, stream, error))
    return records


def run(
    source: GeneralizeFormer,
    dataset: DomainDataset,
    method: str,
    stream: Stream,
    run_seed: int,
    settings: Settings | None = None,
    sources: DomainDataset | None = None,
    before: dict[str, float] | None = None,
    read: Read = arriving,
) -> Record:
    """One method on one stream: the images go in, the truth is kept here.

    `sources`: source validation images, which the plain source model answers before and the method after the
    stream, in batches of the same size and, where the stream has a limit, no more of each domain. `before`: what
    the plain source model has on them, where that is known.
    `read`: how the stream's images come.
    """
    mine = (settings or {}).get(method, {})
    if read is arriving and _starts_cold(source):  # a search reads in its own way, and is not timed
        warm(source, dataset, method, stream, mine)
    held = _allocated(source)
    adapter, used = build_adapter(method, source, **mine)
    scored = _score(adapter, _learn, source, dataset, stream, read)
    after = {}
    if sources is not None:
        before = before or _recalled(build_adapter("source", source)[0], source, sources, stream)
        after = _recalled(adapter, source, sources, stream)
    cost, images = scored.cost, len(scored.right)
    return Record(
        method=method,
        targets=stream.targets,
        batch_size=stream.batch_size,
        seed=stream.seed,
        run_seed=run_seed,
        images=images,
        accuracy=percent(scored.right),
        by_target=percent_by(scored.right, scored.where, stream.targets),
        seconds=cost.seconds,
        settings=used,
        order=stream.order,
        order_settings=dict(stream.settings),
        stream=stream.key(),
        sources_before=before or {},
        sources_after=after,
        by_class=percent_by(scored.right, scored.labels, dataset.classes),
        calibration_error=calibration_error(scored.right, scored.confidence),
        forwards=cost.forwards / images,
        backwards=cost.backwards / images,
        memory=None if cost.peak is None or held is None else cost.peak - held,
    )


def warm(
    source: GeneralizeFormer,
    dataset: DomainDataset,
    method: str,
    stream: Stream,
    settings: Mapping[str, Any],
) -> None:
    """Lets the method answer a first batch, and forgets it: the same run follows, as if this had not been.

    A process's first calls on a GPU load kernels and try them out, which the method that is timed first would pay.
    """
    device = next(source.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        adapter, _ = build_adapter(method, source, **settings)
        first = next(iter(arriving(source, dataset, stream, _together(adapter, stream))))
        asked = ALONE.submit(_learn, adapter, first.images, first.groups)
        asked.result().cpu()  # or the device would go on with it in the time of the next
    del adapter, first, asked
    gc.collect()  # what refers to itself would count as held from before


def _starts_cold(source: GeneralizeFormer) -> bool:
    """Whether first calls are slower than all others where the model is."""
    return next(source.parameters()).device.type == "cuda"


def _together(adapter: Adapter, stream: Stream) -> int:
    """Images that are asked about at once: many batches where the method keeps no state."""
    return TOGETHER if isinstance(adapter, GroupedAdapter) else stream.batch_size


def _score(
    adapter: Adapter,
    ask: Ask,
    source: GeneralizeFormer,
    dataset: DomainDataset,
    stream: Stream,
    read: Read = arriving,
) -> Scored:
    """The stream answered by the method, and the answers held against the truth."""
    together = _together(adapter, stream)
    passes = Passes(source.backbone, source.slots.classifier)
    parts, seconds, peaks = [], 0.0, []
    for images, groups, truth in read(source, dataset, stream, together):
        asked = ALONE.submit(_measured, ask, adapter, images, groups, passes)
        logits, spent, peak = asked.result()
        labels, where = truth.labels.cpu(), truth.domains.cpu()
        right, sure = logits.argmax(1) == labels, logits.double().softmax(1).amax(1)
        parts.append((right, sure, labels, where))
        seconds += spent
        peaks.append(peak)
    known = [peak for peak in peaks if peak is not None]
    cost = Cost(seconds, passes.forwards, passes.backwards, max(known, default=None))
    right, sure, labels, where = map(torch.cat, zip(*parts, strict=True))
    return Scored(right, sure, labels, where, cost)


def _recalled(
    adapter: Adapter, source: GeneralizeFormer, sources: DomainDataset, stream: Stream
) -> dict[str, float]:
    """Percent on every source domain, shuffled, in batches of the stream's size and no more images than it may have.

    The method learns nothing.
    """
    size, seed, limit = stream.batch_size, stream.seed, stream.limit
    visits = {name: Stream((name,), size, seed, limit) for name in sources.names}
    return {
        name: percent(_score(adapter, _recall, source, sources, visit).right)
        for name, visit in visits.items()
    }


def _measured(
    ask: Ask, adapter: Adapter, images: Tensor, groups: Tensor, passes: Passes
) -> tuple[Tensor, float, int | None]:
    """The logits that the method answers, the seconds it took, and the most bytes that the GPU held meanwhile."""
    on_gpu = images.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(images.device)
    with passes:
        started = time.perf_counter()
        logits = ask(adapter, images, groups).cpu()  # reading waits for the device
        seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated(images.device) if on_gpu else None
    return logits, seconds, peak


def _allocated(source: GeneralizeFormer) -> int | None:
    """Bytes held on the GPU; None elsewhere, where nobody counts them."""
    device = next(source.parameters()).device
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


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
