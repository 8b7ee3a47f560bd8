"""Channels of a norm layer: how they are described, and what a move does to γ and β."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from generalizeformer.core.generators._units import GRADIENT_FLOOR, Input, relative
from generalizeformer.core.observation import Observation
from generalizeformer.core.shapes import Params
from generalizeformer.core.slots import Slot

DESCRIPTORS = 8
MOVES = 4  # towards the batch's mean, towards its spread, free change of γ, free change of β


@runtime_checkable
class Bounds(Protocol):
    @property
    def reach(self) -> float: ...
    @property
    def change(self) -> float: ...
    @property
    def inputs(self) -> tuple[Input, ...]: ...


def describe(slot: Slot, source: Params, seen: Observation, inputs: tuple[Input, ...]) -> Tensor:
    """(groups, channels, DESCRIPTORS): the batch's statistics, the gradients, γ and β, each in source units."""
    groups, channels = len(seen.grouping.sizes), slot.size[1]
    mean, spread = shift(slot, seen)
    gradients, size = relative(_both(slot.rows(seen.gradients)), GRADIENT_FLOOR)
    parameters = (_both(slot.rows(source)) / _unit(slot, source)).clamp(-4, 4)
    blank = mean.new_zeros(groups, channels)
    told = {
        "features": [mean, spread],
        "gradients": [*gradients.unbind(1), size.squeeze(-1).expand(-1, channels)],
        "parameters": [row.expand(groups, -1) for row in parameters.unbind(0)],
    }
    columns = [c if kind in inputs else blank for kind, many in told.items() for c in many]
    return torch.stack([*columns, blank + 1], -1)


def apply(slot: Slot, source: Params, seen: Observation, moves: Tensor, bounds: Bounds) -> Params:
    """γ and β after the move. All moves zero gives the source's, bit for bit.

    With m and s the batch's mean and spread in source units, normalising by a part a of the mean and a part b
    of log s is the affine change γ' = γ s^-b, β' = β - γ' a m.
    """
    mean, spread = shift(slot, seen)
    if "features" not in bounds.inputs:
        mean, spread = torch.zeros_like(mean), torch.zeros_like(spread)
    to_mean, to_spread, scale, offset = moves.unbind(-1)
    rows = slot.rows(source)
    weight = rows[0] * (-bounds.reach * to_spread * spread).exp() * (1 + bounds.change * scale)
    if len(rows) == 1:
        return slot.parameters(weight.unsqueeze(1))
    bias = (
        rows[1]
        - weight * bounds.reach * to_mean * mean
        + bounds.change * offset * _unit(slot, source)
    )
    return slot.parameters(torch.stack([weight, bias], 1))


def shift(slot: Slot, seen: Observation) -> tuple[Tensor, Tensor]:
    """Mean and log spread of the batch in source units, bounded: beyond the bound it is no longer a shift of style."""
    statistics = seen.statistics[slot.layer]
    dtype = seen.features.dtype
    spread = 0.5 * statistics.variance.clamp(min=1e-6).log()
    return statistics.mean.clamp(-3, 3).to(dtype), spread.clamp(-2, 2).to(dtype)


def _both(rows: Tensor) -> Tensor:
    """γ and β; a missing β is zero."""
    return rows if rows.shape[-2] == 2 else torch.cat([rows, torch.zeros_like(rows)], -2)


def _unit(slot: Slot, source: Params) -> Tensor:
    return slot.rows(source)[0].square().mean().sqrt() + 1e-6
