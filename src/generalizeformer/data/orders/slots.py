"""Labels that come in runs, without balance: the stream of practical test-time adaptation.

Yuan et al., 2023 (RoTTA): gamma 0.1, as many slots as classes but 100 at most, batches of 64.
Every class is cut over the slots in the dataset's own order; a slot may stay empty. Targets come
one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator

from generalizeformer.data.orders._draws import (
    Indices,
    Labels,
    Pairs,
    by_label,
    check,
    cut,
    joined,
    numpy_generator,
    pairs,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """How unevenly; the smaller gamma, the fewer slots a class is in."""

    gamma: float = 0.1
    most: int = 100  # slots

    def __post_init__(self) -> None:
        check("slots", "gamma", self.gamma, self.gamma > 0, "above 0")
        check("slots", "most", self.most, self.most >= 1, "at least 1")


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Every image exactly once."""
    draws = numpy_generator(generator)
    ordered = [_ordered(by_label(part), draws, config) for part in parts]
    return torch.cat([pairs(target, images) for target, images in enumerate(ordered)])


def _ordered(classes: list[Indices], draws: np.random.Generator, config: Config) -> Indices:
    count = min(len(classes), config.most)
    pieces = [cut(images, draws.dirichlet(np.full(count, config.gamma))) for images in classes]
    slots = [[of_class[slot] for of_class in pieces] for slot in range(count)]
    return joined([joined([slot[i] for i in draws.permutation(len(slot))]) for slot in slots])
