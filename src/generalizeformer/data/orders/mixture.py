"""A share of every target, mixed image by image ("InOutMixture" of Zhao et al., 2023, TTAB: one half).

There one of the two is unseen images of a source domain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from generalizeformer.data.orders._draws import Labels, Pairs, check, pairs


@dataclass(frozen=True, kw_only=True)
class Config:
    """How much of every target arrives."""

    share: float = 0.5

    def __post_init__(self) -> None:
        check("mixture", "share", self.share, 0 < self.share <= 1, "above 0 and at most 1")


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Every image that is kept exactly once; at least one of every target is kept."""
    kept = []
    for target, part in enumerate(parts):
        count = max(1, round(config.share * len(part)))
        kept.append(pairs(target, torch.randperm(len(part), generator=generator)[:count]))
    rows = torch.cat(kept)
    return rows[torch.randperm(len(rows), generator=generator)]
