"""What arrives at test time: which targets, in which order, how many images at once."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from generalizeformer.data.domains import DomainDataset
from generalizeformer.errors import DataError
from generalizeformer.seeds import derive


@dataclass(frozen=True, eq=False)
class Truth:
    """What the one who scores may know and the one who adapts may not."""

    labels: Int64[Tensor, " n"]
    domains: Int64[Tensor, " n"]  # positions in the dataset's domains


@dataclass(frozen=True, eq=False)
class Batch:
    """Images that arrive together. The truth stands apart, so that it is easy not to hand over."""

    images: UInt8[Tensor, "n c h w"]
    truth: Truth


class Chunk(NamedTuple):
    """Consecutive batches at once; images of one batch share a group id, counted from 0."""

    images: UInt8[Tensor, "n c h w"]
    groups: Int64[Tensor, " n"]
    truth: Truth


@dataclass(frozen=True)
class Stream:
    """One pass over the images of its targets; several targets arrive mixed image by image."""

    targets: tuple[str, ...]
    batch_size: int
    seed: int
    limit: int | None = None  # stop after this many images; None: every image

    def __post_init__(self) -> None:
        if isinstance(self.targets, str) or not self.targets:
            raise DataError(
                f"stream: targets is {self.targets!r}; give a tuple of at least one domain name, "
                "such as ('sketch',)"
            )
        if len(set(self.targets)) < len(self.targets):
            raise DataError(
                f"stream: targets is {self.targets!r}, which names a domain twice; name each once"
            )
        _check_at_least_one("batch_size", self.batch_size)
        if self.limit is not None:
            _check_at_least_one("limit", self.limit)

    def key(self) -> str:
        """A name for this stream that is the same on every machine: sha256 of its JSON."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def order(self, dataset: DomainDataset) -> Int64[Tensor, "n 2"]:
        """(domain, image) index pairs in order of arrival: one permutation over all targets.

        The batch size takes no part in the draw, so changing it regroups the same arrivals.
        """
        rows = torch.cat([_rows(dataset, target) for target in self.targets])
        seed = derive("stream", self.seed, *self.targets)
        permutation = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        return rows[permutation[: self.limit]]

    def batches(self, dataset: DomainDataset) -> Iterator[Batch]:
        """The batches one after another. The last one may be short; no image is dropped."""
        pieces = torch.split(self.order(dataset), self.batch_size)
        return (Batch(*_gather(dataset, piece)) for piece in pieces)

    def chunks(self, dataset: DomainDataset, images: int) -> Iterator[Chunk]:
        """The same batches, several at once: as many as fit in `images`, and at least one.

        For methods that keep no state, whose answers to a batch do not depend on its neighbours.
        """
        _check_at_least_one("images", images)
        together = max(1, images // self.batch_size) * self.batch_size
        pieces = torch.split(self.order(dataset), together)
        return (self._chunk(dataset, piece) for piece in pieces)

    def _chunk(self, dataset: DomainDataset, rows: Int64[Tensor, "n 2"]) -> Chunk:
        images, truth = _gather(dataset, rows)
        groups = torch.arange(len(rows), device=images.device) // self.batch_size
        return Chunk(images, groups, truth)


def _rows(dataset: DomainDataset, target: str) -> Int64[Tensor, "n 2"]:
    """The (domain, image) index pairs of one target, in the dataset's order."""
    images = torch.arange(len(dataset[target]))
    return torch.stack((torch.full_like(images, dataset.index(target)), images), dim=1)


def _gather(
    dataset: DomainDataset, rows: Int64[Tensor, "n 2"]
) -> tuple[UInt8[Tensor, "n c h w"], Truth]:
    images, labels = dataset.pick(rows)
    return images, Truth(labels, rows[:, 0].to(labels.device))


def _check_at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise DataError(f"stream: {field} is {value}; it must be at least 1")
