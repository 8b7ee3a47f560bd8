"""Passes over whole feature maps, which is what norm layers spend their time on.

On a GPU, where channels lie last, each is one kernel (`generalizeformer.kernels`), which also does the activation that
follows; elsewhere PyTorch's operations, and the activation is left to the layer. Numbers for each image and channel
are matrices (images, channels).
"""

import importlib
import importlib.util
import os
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Map = Float[Tensor, "images channels *space"]
PerImage = Float[Tensor, "images channels"]
SWITCH = "GENERALIZEFORMER_KERNELS"  # 0 in the environment: PyTorch's operations everywhere
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Act(IntEnum):
    """The activation that a kernel does in the same pass."""

    NONE = 0
    RELU = 1
    RELU6 = 2


def serves(x: Tensor) -> bool:
    """Whether there are kernels for this map."""
    if not x.is_cuda or x.dim() != 4 or x.dtype not in DTYPES or not x.numel():
        return False
    laid = x.is_contiguous(memory_format=torch.channels_last)
    # A compiler fuses these operations by itself.
    return laid and not torch.compiler.is_compiling() and _has_triton()


def scaled(x: Map, slope: PerImage, start: PerImage, act: Act = Act.NONE) -> Map:
    """act(start + slope x), for gradients to go back through."""
    if not serves(x):
        return affine(x, slope, start, act)
    return _Scaled.apply(x, slope.float(), start.float(), act)  # type: ignore[no-any-return]


def affine(x: Map, slope: PerImage, start: PerImage, act: Act = Act.NONE) -> Map:
    """act(start + slope x)."""
    if serves(x):
        return _kernel("affine")(x, slope, start, act)  # type: ignore[no-any-return]
    assert act is Act.NONE  # the layer's
    return line(x, slope, start)


def sums(
    gradient: Map, x: Map, slope: PerImage, start: PerImage, act: Act = Act.NONE
) -> tuple[PerImage, PerImage]:
    """The gradients of `affine`'s slope and start, from that of its output."""
    if serves(x):
        return _kernel("sums")(_laid(gradient), x, slope, start, act)  # type: ignore[no-any-return]
    space = tuple(range(2, x.dim()))
    tilted = gradient.to(slope.dtype) * x
    return tilted.sum(space, dtype=slope.dtype), gradient.sum(space, dtype=slope.dtype)


def way_back(
    gradient: Map,
    x: Map,
    slope: PerImage,
    start: PerImage,
    act: Act,
    flat: PerImage,
    tilt: PerImage,
) -> Map:
    """The gradient of x, from that of `affine`'s output, and flat + tilt x, which is what moments add."""
    if serves(x):
        given = (_laid(gradient), x, slope, start, act, (flat, tilt))
        return _kernel("way_back")(*given)  # type: ignore[no-any-return]
    moments = torch.addcmul(_over(flat, x), x, _over(tilt, x))
    return torch.addcmul(moments, gradient, _over(slope, x)).to(x.dtype)


def line(x: Map, slope: PerImage, start: PerImage) -> Map:
    """start + slope x, rounded once: far from 0, what is left of x in half precision hangs on digits of both."""
    return torch.addcmul(_over(start, x), x, _over(slope, x)).to(x.dtype)


def _over(values: PerImage, x: Map) -> Tensor:
    """Shaped to go over x, in single precision at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return values.to(wide).reshape(*values.shape, *[1] * (x.dim() - 2))


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor, start: Tensor, act: Act) -> Tensor:
        ctx.save_for_backward(x, slope, start)
        ctx.act = act
        return _kernel("affine")(x, slope, start, act)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        given = (_laid(gradient), *ctx.saved_tensors, ctx.act)
        of_x, of_slope, of_start = None, None, None
        if ctx.needs_input_grad[0]:
            of_x = _kernel("way_back")(*given)
        if any(ctx.needs_input_grad[1:]):
            of_slope, of_start = _kernel("sums")(*given)
        return of_x, of_slope, of_start, None


def _laid(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


def _kernel(name: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] = getattr(importlib.import_module("generalizeformer.kernels"), name)
    return kernel


@cache
def _has_triton() -> bool:
    """Whether there is Triton, which PyTorch brings for GPUs on Linux, and kernels were not switched off."""
    wanted = os.environ.get(SWITCH, "1") != "0"
    return wanted and importlib.util.find_spec("triton") is not None
