"""The same targets again and again (Wang et al., 2022, CoTTA: 10 rounds), some images at every visit.

Images of a target are drawn without replacement; once all were shown, they are shuffled again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from generalizeformer.data.orders._draws import Labels, Pairs, check, pairs


@dataclass(frozen=True, kw_only=True)
class Config:
    """How often, and how long."""

    visits: int = 10  # of every target
    per_visit: int = 400  # images

    def __post_init__(self) -> None:
        check("recurring", "visits", self.visits, self.visits >= 1, "at least 1")
        check("recurring", "per_visit", self.per_visit, self.per_visit >= 1, "at least 1")
        total = self.visits * self.per_visit
        check("recurring", "visits x per_visit", total, total >= 1, "at least 1")


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Visits in turn; no image of a target comes twice before all came once."""
    total = config.visits * config.per_visit
    shown = [pairs(t, _repeated(len(part), total, generator)) for t, part in enumerate(parts)]
    visits = zip(*(torch.split(images, config.per_visit) for images in shown), strict=True)
    return torch.cat([visit for round_ in visits for visit in round_])


def _repeated(count: int, total: int, generator: Generator) -> Labels:
    rounds = -(-total // count)
    return torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])[:total]
