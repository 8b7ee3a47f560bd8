"""Other class shares than the dataset's (Garg et al., 2023, RLSbench): Dirichlet(alpha * classes * shares).

Published alphas include 1.0 and 0.3; the smaller, the stronger the shift. Images are left out, never
repeated. Targets come one after another.
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

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check("target_shift", "alpha", self.alpha, self.alpha > 0, "above 0")


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """No image twice: as many as the drawn class shares allow."""
    draws = numpy_generator(generator)
    kept = [_kept(by_label(part), draws, config.alpha) for part in parts]
    return torch.cat([pairs(target, images) for target, images in enumerate(kept)])


def _kept(classes: list[Indices], draws: np.random.Generator, alpha: float) -> Indices:
    counts = np.array([len(images) for images in classes])
    shares = draws.dirichlet(alpha * len(classes) * counts / counts.sum())
    shares = np.maximum(shares, 1e-100)  # a share of 0 asks for none, not for infinity
    # The class that runs out first says how many images there can be.
    allowed = np.floor((counts / shares).min() * shares + 1e-9).astype(int)
    pieces = [draws.permutation(own)[:count] for own, count in zip(classes, allowed, strict=True)]
    return draws.permutation(joined(pieces))
