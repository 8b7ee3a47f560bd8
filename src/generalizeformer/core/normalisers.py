"""Normalisation layers of every family, reduced to: source-normalise, then scale and shift along one axis."""

import copy
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from generalizeformer.core import maps
from generalizeformer.core.maps import Act
from generalizeformer.errors import SlotError


def is_norm(layer: nn.Module) -> bool:
    """Whether the layer scales (and shifts) normalised channels by a vector that could be generated."""
    # Weights come last: some layers work theirs out when asked, and change by it.
    if not has_source_statistics(layer) and not _is_self_normalising(layer):
        return False
    weight = getattr(layer, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 1


def has_source_statistics(layer: nn.Module) -> bool:
    """Whether the layer normalises with statistics of the source (BatchNorm and its frozen variants).

    Told by what the layer carries, so that torchvision's and timm's frozen variants, which are not
    subclasses of BatchNorm, count as well.
    """
    if isinstance(layer, _InstanceNorm):  # it normalises each image by itself unless told to track
        return layer.running_var is not None
    return isinstance(layer, _BatchNorm) or hasattr(layer, "running_var")


def source_scale(layer: nn.Module, name: str) -> tuple[Tensor, Tensor]:
    """Running mean and 1/σ of a BatchNorm layer, the units in which its inputs are described."""
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        raise SlotError(
            f"{name}: this {type(layer).__name__} keeps no running statistics, so there is no source to start "
            "from; train with track_running_stats=True"
        )
    return mean, (variance + layer.eps).rsqrt()  # type: ignore[operator, return-value]


def channel_axis(layer: nn.Module) -> int:
    """1 for layers over feature maps, -1 for layers over tokens."""
    over_tokens = isinstance(layer, nn.LayerNorm | nn.RMSNorm) or "RmsNorm" in type(layer).__name__
    return -1 if over_tokens and not type(layer).__name__.endswith("2d") else 1


def self_normalise(layer: nn.Module, x: Tensor) -> Tensor:
    """x as the layer normalises it before its affine part. Only for layers without source statistics."""
    eps: float | None = layer.eps  # type: ignore[assignment]
    if isinstance(layer, nn.GroupNorm):
        return F.group_norm(x, layer.num_groups, eps=layer.eps)
    if isinstance(layer, _InstanceNorm):
        return F.instance_norm(x, eps=layer.eps)
    axis = channel_axis(layer)
    x = x.movedim(axis, -1)
    shape = (x.shape[-1],)
    x = (
        F.layer_norm(x, shape, eps=layer.eps)
        if isinstance(layer, nn.LayerNorm)
        else F.rms_norm(x, shape, eps=eps)
    )
    return x.movedim(-1, axis)


def finish(layer: nn.Module, x: Tensor) -> Tensor:
    """What timm's fused layers do after normalising: dropout (off here), then the activation."""
    for part in ("drop", "act"):
        step = getattr(layer, part, None)
        x = step(x) if isinstance(step, nn.Module) else x
    return x


def folded(layer: nn.Module) -> Act:
    """The activation that `finish` amounts to, where a kernel can do it in the same pass."""
    drop, act = getattr(layer, "drop", None), getattr(layer, "act", None)
    if drop is not None and type(drop) is not nn.Identity:
        return Act.NONE
    known: dict[type, Act] = {nn.ReLU: Act.RELU, nn.ReLU6: Act.RELU6}
    return known.get(type(act), Act.NONE)


def rescaled(layer: nn.Module, x: Tensor, slope: Tensor, start: Tensor) -> Tensor:
    """What the layer answers where slope x + start is what it makes of x: one multiply-add over the feature map.

    Both have numbers for every channel, (channels) or (1, channels), or for every image as well, (images, channels).
    """
    act = folded(layer) if maps.serves(x) else Act.NONE
    y = maps.scaled(x, slope.expand(x.shape[:2]), start.expand(x.shape[:2]), act)
    return y if act else finish(layer, y)


def check_understood(layer: nn.Module, name: str) -> None:
    """Raises where a subclass of a norm layer does something else than the family it derives from."""
    if not is_understood(layer):
        raise SlotError(
            f"{name}: {type(layer).__name__} does not compute what its family computes, so its parameters "
            f"cannot be generated; leave it out with Selection(exclude=({name!r},))"
        )


def is_understood(layer: nn.Module) -> bool:
    """Whether the layer computes what this file says, tried out on a copy where it is not torch's own."""
    if type(layer).__module__.startswith("torch.nn"):
        return True
    layer = _with_values(layer).eval()
    weight: Tensor = layer.weight  # type: ignore[assignment]
    space = (3,) if isinstance(layer, nn.BatchNorm1d | nn.InstanceNorm1d) else (3, 3)
    shape = (2, *space, len(weight)) if channel_axis(layer) == -1 else (2, len(weight), *space)
    x = torch.linspace(-2, 2, prod(shape), dtype=weight.dtype, device=weight.device).reshape(shape)
    try:
        with torch.no_grad():
            expected, got = layer(x), replay(layer, x)
        return expected.shape == got.shape and torch.allclose(expected, got, rtol=1e-3, atol=1e-4)
    except (AttributeError, RuntimeError, ValueError):  # it lacks a part, or takes another shape
        return False


@torch.no_grad()
def _with_values(layer: nn.Module) -> nn.Module:
    """A copy with parameters that tell: under γ = 1 and β = 0 many a computation looks like another."""
    layer = copy.deepcopy(layer)
    for name, around in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
        value = getattr(layer, name, None)
        if isinstance(value, Tensor):
            value.copy_(torch.linspace(around - 0.3, around + 0.4, len(value)))
    return layer


def replay(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer in eval mode, from the pieces of this file."""
    if has_source_statistics(layer):
        mean, scale = source_scale(layer, type(layer).__name__)
        x = (x - along(mean, 1, x)) * along(scale, 1, x)
    else:
        x = self_normalise(layer, x)
    x = x * along(layer.weight, channel_axis(layer), x)  # type: ignore[arg-type]
    bias = getattr(layer, "bias", None)
    return finish(layer, x if bias is None else x + along(bias, channel_axis(layer), x))


def along(values: Tensor, axis: int, x: Tensor) -> Tensor:
    """Per-channel values, (C) or (N, C), shaped to broadcast over x's channel axis."""
    if axis == 1:
        return values.reshape(*values.shape, *[1] * (x.dim() - 2))
    return values if values.dim() == 1 else values.reshape(len(values), *[1] * (x.dim() - 2), -1)


def _is_self_normalising(layer: nn.Module) -> bool:
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return len(layer.normalized_shape) == 1
    kinds = nn.GroupNorm | _InstanceNorm
    return isinstance(layer, kinds) or type(layer).__name__ in ("RmsNorm", "RmsNorm2d")
