"""What arrives at test time: which targets, in which order, how many images at once."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Generator, Tensor

from generalizeformer import catalog
from generalizeformer.config import from_dict
from generalizeformer.data import targets as changes
from generalizeformer.data.domains import DomainDataset
from generalizeformer.errors import DataError
from generalizeformer.seeds import derive

ORDERS = "generalizeformer.data.orders"
PLAIN = "shuffled"
Setting = float | int | bool


@dataclass(frozen=True, eq=False)
class Truth:
    """What the one who scores may know and the one who adapts may not."""

    labels: Int64[Tensor, " n"]
    domains: Int64[Tensor, " n"]  # positions in the stream's targets


class Chunk(NamedTuple):
    """Consecutive batches at once; images of one batch share a group id, counted from 0.

    The truth stands apart, so that it is easy not to hand over.
    """

    images: UInt8[Tensor, "n c h w"]
    groups: Int64[Tensor, " n"]
    truth: Truth


@dataclass(frozen=True)
class Stream:
    """Images of some targets, in some order. A target is a domain, or one under a change: "sketch@fog:5"."""

    targets: tuple[str, ...]
    batch_size: int
    seed: int
    limit: int | None = None  # stop after this many images; None: where the order ends
    order: str = PLAIN  # a file of data/orders
    settings: Mapping[str, Setting] | tuple[tuple[str, Setting], ...] = ()  # of the order

    def __post_init__(self) -> None:
        if isinstance(self.targets, str) or not self.targets:
            raise DataError(
                f"stream: targets is {self.targets!r}; give a tuple of at least one domain name, "
                "such as ('sketch',)"
            )
        order = catalog.load(ORDERS, self.order)
        if len(set(self.targets)) < len(self.targets) and not getattr(order, "REPEATS", False):
            raise DataError(
                f"stream: targets is {self.targets!r}, which names a target twice; name each once"
            )
        _check_at_least_one("batch_size", self.batch_size)
        if self.limit is not None:
            _check_at_least_one("limit", self.limit)
        # Every setting is kept, also the usual ones, and as pairs: streams can be compared and hashed.
        config = from_dict(order.Config, dict(self.settings))
        object.__setattr__(self, "settings", tuple(asdict(config).items()))

    def fields(self) -> dict[str, Any]:
        """The stream as plain data. A plain order goes without saying."""
        order = {} if self.order == PLAIN else _order(self)
        plain = {"targets": self.targets, "batch_size": self.batch_size, "seed": self.seed}
        return plain | {"limit": self.limit} | order

    def key(self) -> str:
        """A name for this stream that is the same on every machine: sha256 of its JSON."""
        text = json.dumps(self.fields(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def arrivals(self, dataset: DomainDataset) -> Int64[Tensor, "n 2"]:
        """(target, image) index pairs in order of arrival; a target is a position in `targets`.

        The batch size takes no part in the draw, so changing it regroups the same arrivals. The
        exception is an order that is made of batches.
        """
        order = catalog.load(ORDERS, self.order)
        parts = [dataset[target.domain].labels.cpu() for target in self._parsed(dataset)]
        generator = Generator().manual_seed(derive("stream", self.seed, *self.targets))
        config = from_dict(order.Config, dict(self.settings))
        rows: Tensor = order.arrange(parts, generator, config, self.batch_size)
        return rows[: self.limit]

    def chunks(self, dataset: DomainDataset, images: int) -> Iterator[Chunk]:
        """The batches one after another, as many at once as fit in `images`, and at least one.

        Several at once are for methods that keep no state, whose answers to a batch do not depend on its neighbours.
        The last batch may be short; no image is dropped.
        """
        _check_at_least_one("images", images)
        together = max(1, images // self.batch_size) * self.batch_size
        pieces = torch.split(self.arrivals(dataset), together)
        return (self._chunk(dataset, piece) for piece in pieces)

    def _chunk(self, dataset: DomainDataset, rows: Int64[Tensor, "n 2"]) -> Chunk:
        images, truth = self._gather(dataset, rows)
        groups = torch.arange(len(rows), device=images.device) // self.batch_size
        return Chunk(images, groups, truth)

    def _gather(
        self, dataset: DomainDataset, rows: Int64[Tensor, "n 2"]
    ) -> tuple[UInt8[Tensor, "n c h w"], Truth]:
        parsed = self._parsed(dataset)
        domains = torch.tensor([dataset.index(target.domain) for target in parsed])
        images, labels = dataset.pick(torch.stack((domains[rows[:, 0]], rows[:, 1]), dim=1))
        for number in sorted(set(rows[:, 0].tolist())):
            if parsed[number].change is not None:
                mine = rows[:, 0] == number
                seeds = changes.image_seeds(self.targets[number], self.seed, rows[mine, 1])
                places = mine.to(images.device)
                images[places] = changes.apply(parsed[number], images[places], seeds)
        return images, Truth(labels, rows[:, 0].to(labels.device))

    def _parsed(self, dataset: DomainDataset) -> list[changes.Target]:
        return [changes.parse(word, dataset.names) for word in self.targets]


def order_words(order: str, settings: Mapping[str, Any]) -> str:
    """An order in a few words: its name, and the settings that are not the usual ones."""
    usual = asdict(catalog.load(ORDERS, order).Config())
    unusual = [f"{name}={value}" for name, value in settings.items() if value != usual.get(name)]
    return f"{order} ({', '.join(unusual)})" if unusual else order


def _order(stream: Stream) -> dict[str, Any]:
    return {"order": stream.order, "settings": dict(stream.settings)}


def _check_at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise DataError(f"stream: {field} is {value}; it must be at least 1")
