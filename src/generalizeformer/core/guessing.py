"""A norm layer that moves towards the looks that its images let guess, in the very run that answers them.

As in `core.settling`, but m and s are those of a look (`core.variation`), and each image has its own: where a group's
images look alike it is the group's. Autograd finds the way back.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from generalizeformer.core import maps
from generalizeformer.core.groups import Grouping
from generalizeformer.core.maps import Act, Map, line
from generalizeformer.core.settling import Moves, PerChannel, PerGroup, Settled
from generalizeformer.core.statistics import Statistics, bounded, moments, pool
from generalizeformer.core.variation import Guess

Rows = Float[Tensor, "rows channels"]  # of groups, or of images


def settle_by_looks(
    x: Map,
    weight: PerGroup,
    bias: PerGroup,
    moves: Moves,
    source: tuple[PerChannel, PerChannel],
    grouping: Grouping,
    guess: Guess,
    act: Act = Act.NONE,
) -> Settled:
    """The normalised x under γ and β that moved. `source`: the running mean and 1/σ; `act` as in `settle`.

    The γ and β that it tells are those of the groups' looks.
    """
    if x.dim() == 2:  # without space
        given = (weight, bias, moves, source, grouping, guess)
        settled = settle_by_looks(x.unsqueeze(-1), *given)
        return settled._replace(output=settled.output.squeeze(-1))
    with torch.autocast(x.device.type, enabled=False):  # statistics need their digits
        wide = guess.ratio.dtype
        mean, scale = (part.to(wide) for part in source)
        weights, biases, shares = (part.to(wide) for part in (weight, bias, moves))
        each = Statistics(*_Moments.apply(x)).relative_to(mean, scale)
        together = pool(each, grouping)
        shown = torch.cat(bounded(together), 1), torch.cat(bounded(each), 1)
        groups, images = guess(*shown, grouping)
        moved, offset = _moved(weights, biases, shares, groups)
        mine = (grouping.spread(weights), grouping.spread(biases), grouping.spread(shares))
        slope, start = _moved(*mine, images)
        slope = slope * scale
        start = torch.addcmul(start, mean, slope, value=-1)
        output = maps.scaled(x, slope, start, act)
    return Settled(output, moved.to(weight.dtype), offset.to(weight.dtype))


def _moved(
    weight: Rows,
    bias: Rows,
    moves: Float[Tensor, "rows 2 channels"],
    looks: Float[Tensor, "rows both"],
) -> tuple[Rows, Rows]:
    """γ' and β'."""
    (to_mean, to_spread), (mean, spread) = moves.unbind(1), looks.chunk(2, 1)
    weight = weight * (-to_spread * spread).exp()
    return weight, torch.addcmul(bias, weight * to_mean, mean, value=-1)


class _Moments(torch.autograd.Function):
    """Mean and variance of every image. By itself autograd would keep more feature maps than this one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = moments(x)
        ctx.save_for_backward(x, seen.mean)
        return seen.mean, seen.variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        of_mean, of_variance = (gradient / x[0, 0].numel() for gradient in gradients)
        tilt = 2 * of_variance
        flat = torch.addcmul(of_mean, tilt, mean, value=-1)
        return line(x, tilt, flat)
