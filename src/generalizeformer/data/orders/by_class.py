"""Class after class (Boudiaf et al., 2022, LAME): the shuffled images, gathered by class, in batches of 16.

Classes come in the order in which shuffling shows them first. Targets come one after another.
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
    return torch.cat([pairs(t, _grouped(part.cpu(), generator)) for t, part in enumerate(parts)])


def _grouped(labels: Labels, generator: Generator) -> Labels:
    shuffled = torch.randperm(len(labels), generator=generator)
    seen = list(dict.fromkeys(labels[shuffled].tolist()))
    return torch.cat([shuffled[labels[shuffled] == label] for label in seen])
