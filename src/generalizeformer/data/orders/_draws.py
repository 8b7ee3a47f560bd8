"""What several orders need: pairs of indices, numpy's distributions, and cutting by shares."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Generator, Tensor

from generalizeformer.errors import DataError

Labels = Int64[Tensor, " n"]
Pairs = Int64[Tensor, "n 2"]
Indices = np.ndarray[tuple[int], np.dtype[np.int64]]
Shares = np.ndarray[tuple[int], np.dtype[np.float64]]

REDRAWS = 1_000  # before an order that must be drawn again and again gives up
LARGEST = 10_000_000  # of any setting; published ones end at 500,000


def numpy_generator(generator: Generator) -> np.random.Generator:
    """A numpy generator seeded by a torch one, which has no Dirichlet or Zipf distribution."""
    return np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))


def pairs(target: int, images: Tensor | Indices) -> Pairs:
    """(target, image) pairs of some images of one target."""
    indices = torch.as_tensor(images, dtype=torch.int64)
    return torch.stack((torch.full_like(indices, target), indices), dim=1)


def by_label(labels: Labels) -> list[Indices]:
    """The indices of each class that is there, in the order of the labels."""
    values = labels.cpu().numpy()
    return [np.flatnonzero(values == label) for label in np.unique(values)]


def joined(pieces: Sequence[Indices]) -> Indices:
    """All pieces as one; no piece is no index."""
    return np.concatenate([np.empty(0, np.int64), *pieces])


def cut(indices: Indices, shares: Shares) -> list[Indices]:
    """The indices in as many pieces as there are shares, which need not add up to 1."""
    ends = np.floor(np.cumsum(shares / shares.sum())[:-1] * len(indices)).astype(int)
    return np.split(indices, ends)


def check(order: str, field: str, value: float, right: bool, words: str) -> None:
    """Raises where a setting of an order cannot be, or is so large that only a slip explains it."""
    if right and not (math.isfinite(value) and value <= LARGEST):
        right, words = False, f"{words}, and at most {LARGEST:,}"
    if not right:
        raise DataError(f"{order}: {field} is {value}; it must be {words}")
