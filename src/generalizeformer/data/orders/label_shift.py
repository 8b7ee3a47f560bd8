"""One major class at a time (Niu et al., 2023, SAR): it is drawn `ratio` times as often as any other.

Published ratios are 1 to 500,000, where 1 is no shift and the last nearly one class at a time;
batches of 64. Images are drawn with replacement, of every target as many as it has. Targets come
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
    joined,
    numpy_generator,
    pairs,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """How strong the shift is."""

    ratio: float = 500_000.0

    def __post_init__(self) -> None:
        check("label_shift", "ratio", self.ratio, self.ratio > 0, "above 0")


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Images with repeats: every class is the major one for an equal part of the time."""
    draws = numpy_generator(generator)
    drawn = [_drawn(by_label(part), draws, config.ratio) for part in parts]
    return torch.cat([pairs(target, images) for target, images in enumerate(drawn)])


def _drawn(classes: list[Indices], draws: np.random.Generator, ratio: float) -> Indices:
    count, total = len(classes), sum(map(len, classes))
    majors = draws.permutation(count)[np.arange(total) * count // total]
    # A step of 1 to count - 1 from the major class is any other class, equally often.
    others = (majors + draws.integers(1, max(count, 2), total)) % count
    chosen = np.where(draws.random(total) < ratio / (ratio + count - 1), majors, others)
    sizes = np.array([len(images) for images in classes])
    starts = np.cumsum(sizes) - sizes
    places = np.floor(draws.random(total) * sizes[chosen]).astype(int)
    drawn: Indices = joined(classes)[starts[chosen] + places]
    return drawn
