"""One permutation over the images of all targets: independent draws, several targets mixed image by image.

The usual stream of a single target, and "CrossMixture" of several (Zhao et al., 2023, TTAB).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from generalizeformer.data.orders._draws import Labels, Pairs, pairs


@dataclass(frozen=True, kw_only=True)
class Config:
    """Nothing to set."""


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Every image exactly once."""
    rows = torch.cat([pairs(t, torch.arange(len(part))) for t, part in enumerate(parts)])
    return rows[torch.randperm(len(rows), generator=generator)]
