"""A norm layer that moves towards what its groups show it in the very run that answers them.

With m and s a group's mean and spread in source units, a part a of the mean and b of log s: γ' = γ s^-b,
β' = β - γ' a m. Earlier layers have moved already, so what is seen here is what is left of the shift. The way back is
written by hand: autograd's own takes many more operations, and their number is what training φ spends its time on.
"""

from collections.abc import Sequence
from math import exp
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from generalizeformer.core import maps
from generalizeformer.core.groups import Grouping, Kin
from generalizeformer.core.maps import Act, Map, PerImage
from generalizeformer.core.shapes import Groups
from generalizeformer.core.statistics import MEAN_LIMIT, SPREAD_LIMIT, moments, pool

PerGroup = Float[Tensor, "groups channels"]
PerChannel = Float[Tensor, " channels"]
Moves = Float[Tensor, "groups 2 channels"]

LEAST, MOST = exp(-2 * SPREAD_LIMIT), exp(2 * SPREAD_LIMIT)  # of the variance


class Settled(NamedTuple):
    """The layer's output, and the γ and β that gave it."""

    output: Map
    weight: PerGroup
    bias: PerGroup


class _Known(NamedTuple):
    """What the way back needs of the way there."""

    moves: Moves
    mean: PerGroup  # as they are, and
    shift: PerGroup  # in source units, unbounded
    variance: PerGroup
    narrowed: PerGroup  # s^-b
    moved: PerGroup  # γ'
    slope: PerImage  # what x is multiplied by
    start: PerImage  # and what is added to it


def settle(
    x: Map,
    weight: PerGroup,
    bias: PerGroup,
    moves: Moves,
    source: tuple[PerChannel, PerChannel],
    grouping: Grouping,
    act: Act = Act.NONE,
) -> Settled:
    """The normalised x under γ and β that moved. `source`: the running mean and 1/σ.

    `act`: an activation that follows, for maps that `maps.serves`.
    """
    if x.dim() == 2:  # without space
        settled = settle(x.unsqueeze(-1), weight, bias, moves, source, grouping)
        return settled._replace(output=settled.output.squeeze(-1))
    wide = torch.promote_types(x.dtype, torch.float32)
    parts = (part.to(wide) for part in (weight, bias, moves, *source))
    kin = () if grouping.kin is None else grouping.kin.parts()
    given = (act, x, *parts, grouping.ids, grouping.sizes, *kin)
    settled = _Settle.apply(*given) if torch.is_grad_enabled() else _settled(*given)[0]
    output, moved, offset = settled
    return Settled(output, moved.to(weight.dtype), offset.to(weight.dtype))


def _settled(
    act: Act,
    x: Map,
    weight: PerGroup,
    bias: PerGroup,
    moves: Moves,
    mean: PerChannel,
    scale: PerChannel,
    ids: Groups,
    sizes: Float[Tensor, " groups"],
    *kin: Tensor,
) -> tuple[Settled, _Known]:
    with torch.autocast(x.device.type, enabled=False):  # statistics need their digits
        seen, variance = _pooled(x, _grouping(ids, sizes, kin))
        shift, variance = (seen - mean) * scale, variance * scale.square()
        to_mean, to_spread = moves.unbind(1)
        narrowed = variance.clamp(LEAST, MOST).pow(-0.5 * to_spread)
        moved = weight * narrowed
        offset = torch.addcmul(bias, moved * to_mean, _bounded(shift), value=-1)
        # One multiply-add over the feature map: statistics and affine are folded per group first.
        slope = moved * scale
        folded = torch.stack((slope, torch.addcmul(offset, mean, slope, value=-1)), 1)
        slope, start = folded.index_select(0, ids).unbind(1)
        known = _Known(moves, seen, shift, variance, narrowed, moved, slope, start)
        return Settled(maps.affine(x, slope, start, act), moved, offset), known


class _Settle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, act: Act, x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, scale, ids, sizes, *kin = given[3:]
        settled, known = _settled(act, x, *given)
        ctx.act = act
        ctx.save_for_backward(x, mean, scale, ids, sizes, *known, *kin)
        ctx.set_materialize_grads(False)
        return settled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, mean, scale, ids, sizes, *rest = ctx.saved_tensors
        parts = len(_Known._fields)
        known, kin = _Known(*rest[:parts]), rest[parts:]
        of_output, of_moved, of_offset = gradients
        if of_output is None:  # only γ' and β' were used
            of_output = torch.zeros_like(x)
        applied = (of_output, x, known.slope, known.start, ctx.act)
        summed = maps.sums(*applied)
        of_slope, of_start = _added(torch.stack(summed, 1), ids, len(sizes)).unbind(1)
        # Back through the folding and the move, group by group.
        of_offset = of_start if of_offset is None else of_offset + of_start
        to_mean, to_spread = known.moves.unbind(1)
        shift = _bounded(known.shift)
        unfolded = torch.addcmul(of_slope, mean, of_start, value=-1) * scale
        of_moved = unfolded if of_moved is None else of_moved + unfolded
        of_moved = torch.addcmul(of_moved, of_offset * to_mean, shift, value=-1)
        leaned = of_offset * known.moved
        variance = known.variance.clamp(LEAST, MOST)
        pulled = -0.5 * of_moved * known.moved
        of_moves = torch.stack((-leaned * shift, pulled * variance.log()), 1)
        of_shift = -leaned * to_mean * (shift == known.shift)
        of_variance = pulled * to_spread / variance * (variance == known.variance)
        of_variance = of_variance * scale.square()
        of_seen = torch.addcmul(of_shift * scale, known.mean, of_variance, value=-2)
        of_x = None
        if ctx.needs_input_grad[1]:
            shares = torch.stack((of_seen, 2 * of_variance), 1) / x[0, 0].numel()
            flat, tilt = _grouping(ids, sizes, kin).shared(shares).unbind(1)
            of_x = maps.way_back(*applied, flat, tilt)
        none = (None,) * (4 + len(kin))
        return None, of_x, of_moved * known.narrowed, of_offset, of_moves, *none


def _grouping(ids: Groups, sizes: Tensor, kin: Sequence[Tensor]) -> Grouping:
    return Grouping(ids, sizes, Kin(*kin) if kin else None)


def _pooled(x: Map, grouping: Grouping) -> tuple[PerGroup, PerGroup]:
    """Mean and variance of each group in each channel, in single precision at least."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        seen = pool(moments(x), grouping)
        return seen.mean, seen.variance
    # The same in fewer steps; a half-precision map has no digits that these could lose.
    space = tuple(range(2, x.dim()))
    square = torch.linalg.vector_norm(x, dim=space, dtype=torch.float32).square()
    both = torch.stack((x.mean(space, dtype=torch.float32), square / x[0, 0].numel()), 1)
    mean, square = grouping.mean(both).unbind(1)
    return mean, torch.addcmul(square, mean, mean, value=-1)


def _added(values: Float[Tensor, "images 2 channels"], ids: Groups, groups: int) -> Tensor:
    """The sum over each group's images. By index: a matrix product would let one group's inf reach the others."""
    return values.new_zeros(groups, *values.shape[1:]).index_add(0, ids, values)


def _bounded(shift: PerGroup) -> PerGroup:
    return shift.clamp(-MEAN_LIMIT, MEAN_LIMIT)
