"""Channels of norm layers: how they are described, and what a move does to γ and β.

All layers at once: their channels lie side by side in one long axis, because a GPU spends its time on the
number of operations, not on their size.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.core.generators._units import CLIP, GRADIENT_FLOOR, Input, Owners
from generalizeformer.core.observation import Observation
from generalizeformer.core.shapes import Params
from generalizeformer.core.slots import Slot

DESCRIPTORS = 8
MOVES = 4  # towards the batch's mean, towards its spread, free change of γ, free change of β

PerGroup = Float[Tensor, "groups channels"]
PerChannel = Float[Tensor, " channels"]


@runtime_checkable
class Bounds(Protocol):
    @property
    def reach(self) -> float: ...
    @property
    def change(self) -> float: ...
    @property
    def settle(self) -> bool: ...
    @property
    def inputs(self) -> tuple[Input, ...]: ...


def describe(
    slots: list[Slot], source: Params, seen: Observation, inputs: tuple[Input, ...]
) -> Float[Tensor, "groups channels descriptors"]:
    """The batch's statistics, the gradients, γ and β of every channel, each in source units."""
    mean, spread = _shift(slots, seen)
    blank = torch.zeros_like(mean)
    scale, offset = _side_by_side(slots, seen.gradients)
    size = _per_slot(slots, (scale.square() + offset.square()) / 2).sqrt() + GRADIENT_FLOOR
    weight, bias = _side_by_side(slots, source)
    unit = _per_slot(slots, weight.square()).sqrt() + 1e-6
    told = {
        "features": [mean, spread],
        "gradients": [
            (scale / size).clamp(-CLIP, CLIP),
            (offset / size).clamp(-CLIP, CLIP),
            size.log10() / 4,
        ],
        "parameters": [(row / unit).clamp(-CLIP, CLIP).expand_as(blank) for row in (weight, bias)],
    }
    columns = [c if kind in inputs else blank for kind, many in told.items() for c in many]
    return torch.stack([*columns, blank + 1], -1)


def apply(
    slots: list[Slot],
    source: Params,
    seen: Observation,
    moves: Float[Tensor, "groups channels moves"],
    bounds: Bounds,
) -> Params:
    """γ and β after the move. All moves zero gives the source's, bit for bit.

    With m and s the batch's mean and spread in source units, normalising by a part a of the mean and a part b
    of log s is the affine change γ' = γ s^-b, β' = β - γ' a m.
    """
    mean, spread = _shift(slots, seen)
    if "features" not in bounds.inputs:
        mean, spread = torch.zeros_like(mean), torch.zeros_like(spread)
    to_mean, to_spread, scale, offset = moves.unbind(-1)
    weight, bias = _side_by_side(slots, source)
    unit = _per_slot(slots, weight.square()).sqrt() + 1e-6
    if not bounds.settle:
        weight = weight * (-bounds.reach * to_spread * spread).exp()
        bias = bias - weight * bounds.reach * to_mean * mean
    weight = weight * (1 + bounds.change * scale)
    bias = bias + bounds.change * offset * unit
    widths = [slot.size[1] for slot in slots]
    target: Params = {}
    for slot, *rows in zip(
        slots, torch.split(weight, widths, 1), torch.split(bias, widths, 1), strict=True
    ):
        target |= dict(zip(slot.names, rows, strict=False))  # a layer without β takes only γ
    if bounds.settle:
        towards = bounds.reach * torch.stack((to_mean, to_spread), 1)
        for slot, part in zip(slots, torch.split(towards, widths, 2), strict=True):
            target[f"{slot.layer}.towards"] = part
    return target


def _shift(slots: list[Slot], seen: Observation) -> tuple[PerGroup, PerGroup]:
    """Mean and log spread of the batch in source units, bounded: beyond that it is no shift of style."""
    statistics = [seen.statistics[slot.layer] for slot in slots]
    mean = torch.cat([s.mean for s in statistics], 1).clamp(-3, 3)
    variance = torch.cat([s.variance for s in statistics], 1)
    spread = (0.5 * variance.clamp(min=1e-6).log()).clamp(-2, 2)
    return mean.to(seen.features.dtype), spread.to(seen.features.dtype)


def _side_by_side(slots: list[Slot], params: Params) -> tuple[Tensor, Tensor]:
    """γ and β, or their gradients, of all layers along the last axis; a missing β is zero."""
    weights = [params[slot.names[0]] for slot in slots]
    biases = [
        params[slot.names[1]] if len(slot.names) == 2 else torch.zeros_like(weight)
        for slot, weight in zip(slots, weights, strict=True)
    ]
    return torch.cat(weights, -1), torch.cat(biases, -1)


def _per_slot(slots: list[Slot], values: Float[Tensor, "*lead channels"]) -> Tensor:
    """For every channel the mean of its layer."""
    owners = Owners.of([slot.size[1] for slot in slots], values.device)
    flat = values.reshape(-1, values.shape[-1], 1)
    return owners.spread(owners.mean(flat)).reshape(values.shape)


def elements(slot: Slot) -> int:
    """How many channels the layer has."""
    return slot.size[1]
