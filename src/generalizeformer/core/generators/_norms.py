"""Channels of norm layers: how they are described, and what a move does to γ and β.

All layers at once: their channels lie side by side in one long axis, because a GPU spends its time on the
number of operations, not on their size.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.core.generators._units import CLIP, GRADIENT_FLOOR, Input, Owners, onward
from generalizeformer.core.observation import Observation
from generalizeformer.core.shapes import Params
from generalizeformer.core.slots import Slot, towards
from generalizeformer.core.statistics import Statistics, bounded
from generalizeformer.core.variation import GUESSED, priors

DESCRIPTORS = 8
MOVES = 4  # of a channel: towards the batch's mean, towards its spread, free change of γ, free change of β
TOWARDS = slice(0, 2)  # of the moves: those towards the batch

PerGroup = Float[Tensor, "groups channels"]
PerChannel = Float[Tensor, " channels"]


@runtime_checkable
class Bounds(Protocol):
    @property
    def reach(self) -> float: ...
    @property
    def pull(self) -> float: ...
    @property
    def recall(self) -> float: ...
    @property
    def prior(self) -> float: ...
    @property
    def variation(self) -> int: ...
    @property
    def away(self) -> float: ...
    @property
    def change(self) -> float: ...
    @property
    def settle(self) -> bool: ...
    @property
    def gather(self) -> bool: ...
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
    to_mean, to_spread, scale, offset = moves.unbind(-1)
    # Away from the batch is never right, and a φ that went that way to the bound has no gradient to come back.
    ways = [onward(part, bounds.away) for part in (to_mean, to_spread)]
    reach = bounds.reach * _trust(seen, bounds)
    to_mean, to_spread = (reach * way for way in ways)
    weight, bias = _side_by_side(slots, source)
    unit = _per_slot(slots, weight.square()).sqrt() + 1e-6
    mean, spread = _left_to_move(slots, seen, bounds)
    weight = weight * (-to_spread * spread).exp() * (1 + bounds.change * scale)
    bias = bias - weight * to_mean * mean + bounds.change * offset * unit
    widths = [slot.size[1] for slot in slots]
    target: Params = {}
    for slot, *rows in zip(
        slots, torch.split(weight, widths, 1), torch.split(bias, widths, 1), strict=True
    ):
        target |= dict(zip(slot.names, rows, strict=False))  # a layer without β takes only γ
    # Where it is known how statistics vary, layers that settle weigh what they see by themselves.
    by_looks = bounds.variation and bounds.settle and not seen.grouping.alike
    told = [bounds.reach * way for way in ways] if by_looks else [to_mean, to_spread]
    both = torch.split(torch.stack(told, 1), widths, 2)
    return target | {
        towards(slot.layer): part
        for slot, part in zip(slots, both, strict=True)
        if settles(slot, bounds)
    }


def _trust(seen: Observation, bounds: Bounds) -> Float[Tensor, "groups 1"]:
    """What the statistics of so many images are worth beside the source's."""
    sizes = seen.grouping.sizes.unsqueeze(1)
    prior = (
        priors(bounds.prior, GUESSED, seen.grouping)
        if bounds.variation and bounds.settle
        else bounds.prior
    )
    return (sizes / (sizes + prior)).to(seen.features.dtype)


def _left_to_move(
    slots: list[Slot], seen: Observation, bounds: Bounds
) -> tuple[PerGroup, PerGroup]:
    """The batch's mean and log spread, but zero where φ must not see them or layers settle while they answer."""
    mean, spread = _shift(slots, seen)
    told = [float("features" in bounds.inputs and not settles(slot, bounds)) for slot in slots]
    owners = Owners.of([slot.size[1] for slot in slots], mean.device)
    here = owners.spread(mean.new_tensor(told).reshape(1, -1, 1)).squeeze(-1)
    return mean * here, spread * here


def settles(slot: Slot, bounds: Bounds) -> bool:
    """Whether the layer moves towards what it sees while it answers."""
    return bounds.settle and slot.settles and "features" in bounds.inputs


def _shift(slots: list[Slot], seen: Observation) -> tuple[PerGroup, PerGroup]:
    """Mean and log spread of the batch in source units, bounded: beyond that it is no shift of style."""
    statistics = [seen.statistics[slot.layer] for slot in slots]
    mean, spread = bounded(
        Statistics(
            torch.cat([s.mean for s in statistics], 1),
            torch.cat([s.variance for s in statistics], 1),
        )
    )
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
