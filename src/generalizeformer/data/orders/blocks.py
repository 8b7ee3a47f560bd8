"""Every batch from one target, chosen uniformly: the counterpart of `shuffled` at the level of batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from generalizeformer.data.orders._draws import Labels, Pairs, numpy_generator, pairs


@dataclass(frozen=True, kw_only=True)
class Config:
    """Nothing to set."""


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Every image exactly once. What fills no batch of its target comes at the end, target after target."""
    draws = numpy_generator(generator)
    waiting, short = [], []
    for target, part in enumerate(parts):
        shuffled = pairs(target, torch.randperm(len(part), generator=generator))
        full = len(shuffled) // batch_size * batch_size
        waiting.append(list(torch.split(shuffled[:full], batch_size)) if full else [])
        short.append(shuffled[full:])
    arrived = []
    while left := [batches for batches in waiting if batches]:
        arrived.append(left[draws.integers(len(left))].pop())
    return torch.cat(arrived + short)
