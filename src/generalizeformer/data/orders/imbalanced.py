"""Few classes with many images (Boudiaf et al., 2022, LAME): class shares are Zipf draws with exponent 2.

Images are drawn with replacement. The published test of a draw cannot be passed with fewer than
ten classes, so here the largest share has a cap. Targets come one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator

from generalizeformer.data.orders._draws import (
    REDRAWS,
    Indices,
    Labels,
    Pairs,
    Shares,
    by_label,
    check,
    joined,
    numpy_generator,
    pairs,
)
from generalizeformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Config:
    """How unequal the classes are."""

    exponent: float = 2.0
    cap: float = 0.6  # the largest share a class may have
    by_class: bool = False  # class after class instead of shuffled

    def __post_init__(self) -> None:
        check("imbalanced", "exponent", self.exponent, self.exponent > 1, "above 1")
        check("imbalanced", "cap", self.cap, 0 < self.cap <= 1, "above 0 and at most 1")


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Images with repeats; of every target about as many as it has, less what rounding takes."""
    draws = numpy_generator(generator)
    drawn = [_drawn(by_label(part), draws, config) for part in parts]
    return torch.cat([pairs(target, images) for target, images in enumerate(drawn)])


def _drawn(classes: list[Indices], draws: np.random.Generator, config: Config) -> Indices:
    total = sum(map(len, classes))
    # Without the small extra, shares that are whole numbers of images could lose one.
    counts = np.floor(total * _shares(len(classes), draws, config) + 1e-9).astype(int)
    pieces = [draws.choice(own, count) for own, count in zip(classes, counts, strict=True)]
    if config.by_class:
        return joined([pieces[i] for i in draws.permutation(len(pieces))])
    return draws.permutation(joined(pieces))


def _shares(classes: int, draws: np.random.Generator, config: Config) -> Shares:
    for _ in range(REDRAWS):
        shares = draws.zipf(config.exponent, classes).astype(float)
        shares /= shares.sum()
        if shares.max() <= config.cap:
            return shares
    raise DataError(
        f"imbalanced: no draw for {classes} classes kept every share below the cap of {config.cap} in "
        f"{REDRAWS:,} draws; raise cap"
    )
