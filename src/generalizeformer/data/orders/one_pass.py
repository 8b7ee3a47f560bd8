"""One pass over one domain while a change grows: its targets are the same domain under growing amounts.

Every image is shown once, under the amount of its moment. Digits that slowly turn are the usual
example: angles from 0 to 90 degrees, jittered by 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from generalizeformer.data.orders._draws import Labels, Pairs, check
from generalizeformer.errors import DataError

REPEATS = True  # an amount may come back


@dataclass(frozen=True, kw_only=True)
class Config:
    """How the change moves with time."""

    jitter: float = 0.0  # the moment of an image moves by up to this share of the pass, either way
    there_and_back: bool = False  # up in the first half, down again in the second

    def __post_init__(self) -> None:
        check("one_pass", "jitter", self.jitter, self.jitter >= 0, "0 or more")


def arrange(
    parts: Sequence[Labels], generator: Generator, config: Config, batch_size: int
) -> Pairs:
    """Every image exactly once, under one of the targets."""
    if not all(torch.equal(part, parts[0]) for part in parts):
        raise DataError(
            "one_pass: the targets are of different domains; name one domain under several amounts, such as "
            "photo@rotation:0 photo@rotation:30"
        )
    count, targets = len(parts[0]), len(parts)
    images = torch.randperm(count, generator=generator)
    moments = torch.arange(count, dtype=torch.float64)
    if config.there_and_back:
        moments = torch.minimum(2 * moments, 2 * (count - 1 - moments))
    if config.jitter:
        drawn = torch.rand(count, dtype=torch.float64, generator=generator)
        moments = moments + (2 * drawn - 1) * config.jitter * count
    # Multiplied before it is divided: whole numbers stay exact, so no step begins one image late.
    steps = torch.floor(moments * targets / count).clamp(0, targets - 1)
    return torch.stack((steps.long(), images), dim=1)
