"""Target after target, each shuffled, with no sign of where one ends (Wang et al., 2022, CoTTA).

With the same change in growing and falling amounts it is the gradual stream of the same field.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from generalizeformer.data.orders._draws import Labels, Pairs, pairs

REPEATS = True  # a target may come back


@dataclass(frozen=True, kw_only=True)
class Config:
    """Nothing to set."""


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Every image exactly once for every time its target is named."""
    shuffled = [torch.randperm(len(part), generator=generator) for part in parts]
    return torch.cat([pairs(target, images) for target, images in enumerate(shuffled)])
