"""Mean and variance of what layers see: first of each image, then of each group, for all layers at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.core.groups import Grouping

# Where a difference from the source is no longer one of style, in its units.
MEAN_LIMIT = 3.0
SPREAD_LIMIT = 2.0  # of the logarithm
PART = 2**20  # numbers that a CPU goes over at a time: they stay in its cache


@dataclass(frozen=True)
class Statistics:
    """Mean and biased variance of each image's, or of each group's, values in each channel."""

    mean: Float[Tensor, "rows channels"]
    variance: Float[Tensor, "rows channels"]

    def relative_to(self, mean: Tensor, scale: Tensor) -> "Statistics":
        """The statistics of (x - mean) · scale."""
        return Statistics((self.mean - mean) * scale, self.variance * scale.square())


def joined(runs: list[dict[str, Statistics]]) -> dict[str, Statistics]:
    """The images of several runs, where every image was a group."""
    return {
        name: Statistics(
            torch.cat([run[name].mean for run in runs]),
            torch.cat([run[name].variance for run in runs]),
        )
        for name in runs[0]
    }


def bounded(
    seen: Statistics,
) -> tuple[Float[Tensor, "rows channels"], Float[Tensor, "rows channels"]]:
    """Mean and log spread in source units, cut where a difference is no longer one of style."""
    spread = 0.5 * seen.variance.clamp(min=1e-6).log()
    mean = seen.mean.clamp(-MEAN_LIMIT, MEAN_LIMIT)
    return mean, spread.clamp(-SPREAD_LIMIT, SPREAD_LIMIT)


def moments(x: Float[Tensor, "images channels *space"]) -> Statistics:
    """Of each image over space, in single precision at least."""
    x = x.unsqueeze(-1) if x.dim() == 2 else x
    space = tuple(
        range(2, x.dim())
    )  # not made one axis: where channels lie last that would copy the map
    if x.dtype in (torch.bfloat16, torch.float16):
        # Sums in single precision without a copy of the feature map in it, which would cost more than the rest.
        mean = x.mean(space, dtype=torch.float32)
        size = torch.linalg.vector_norm(x, dim=space, dtype=torch.float32)
        square = size.square() / x[0, 0].numel()
        return Statistics(mean, (square - mean.square()).clamp(min=0))
    if x.device.type == "cpu":
        return _in_parts(x, space)
    variance, mean = torch.var_mean(x, space, correction=0)
    return Statistics(mean, variance)


def _in_parts(x: Tensor, space: tuple[int, ...]) -> Statistics:
    """A few images at a time, the same bit for bit: what is gone over three times is fetched from memory once."""
    if (x.requires_grad and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return _in_passes(x, space)
    parts = torch.split(x, max(1, PART // max(1, x[:1].numel())))
    if len(parts) == 1:
        return _in_passes(x, space)
    seen = [_in_passes(part, space) for part in parts]
    return Statistics(
        torch.cat([part.mean for part in seen]), torch.cat([part.variance for part in seen])
    )


def _in_passes(x: Tensor, space: tuple[int, ...]) -> Statistics:
    """For CPUs, where var_mean mostly takes longer, of small maps up to ten times."""
    mean = x.mean(space, keepdim=True)
    return Statistics(mean.flatten(1), (x - mean).square().mean(space))


def pool(seen: Statistics, grouping: Grouping) -> Statistics:
    """Of each group; the spread between its images is added to that within, so that nothing cancels but among kin."""
    mean = grouping.mean(seen.mean)
    if grouping.kin is not None:
        square = grouping.mean(seen.variance + seen.mean.square())
        return Statistics(mean, (square - mean.square()).clamp(min=0))
    between = (seen.mean - grouping.spread(mean)).square()
    return Statistics(mean, grouping.mean(seen.variance + between))


def pool_all(seen: dict[str, Statistics], grouping: Grouping) -> dict[str, Statistics]:
    """Of each group in every layer: the layers side by side, because one long operation beats many short ones."""
    if not seen:
        return {}
    together = Statistics(
        torch.cat([m.mean for m in seen.values()], 1),
        torch.cat([m.variance for m in seen.values()], 1),
    )
    pooled, widths = pool(together, grouping), [m.mean.shape[1] for m in seen.values()]
    parts = zip(
        torch.split(pooled.mean, widths, 1), torch.split(pooled.variance, widths, 1), strict=True
    )
    return {name: Statistics(*part) for name, part in zip(seen, parts, strict=True)}
