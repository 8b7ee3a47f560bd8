"""Filters: smoothing by a Gaussian, any kernel, and a smear along a line."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

Outside = Literal["edge", "mirror"]  # what lies beyond the border: its last pixels, or a reflection


def smooth(
    images: Float[Tensor, "n c h w"], sigma: float, reach: float, outside: Outside
) -> Float[Tensor, "n c h w"]:
    """The images under a Gaussian that is cut off `reach` sigmas from its centre.

    One matrix per side says how much every pixel gives to every other. The Gaussian may thus be
    far wider than the image, as that of elastic_transform is, and nothing has to be padded.
    """
    height, width = images.shape[2:]
    down = _shares(height, sigma, reach, outside).to(images.device)
    across = _shares(width, sigma, reach, outside).to(images.device)
    return down @ images @ across.T


def _shares(side: int, sigma: float, reach: float, outside: Outside) -> Float[Tensor, "side side"]:
    radius = int(reach * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    # A sigma of 0 comes with a radius of 0, and the one weight is 1 whatever stands in for it.
    weights = (-0.5 * (offsets / max(sigma, 1e-6)) ** 2).exp()
    weights = (weights / weights.sum()).expand(side, -1)
    places = _inside(torch.arange(side)[:, None] + offsets, side, outside)
    return torch.zeros(side, side).scatter_add_(1, places, weights)


def _inside(
    places: Int64[Tensor, "side k"], side: int, outside: Outside
) -> Int64[Tensor, "side k"]:
    if outside == "edge":
        return places.clamp(0, side - 1)
    places = places.remainder(2 * side)
    return torch.minimum(places, 2 * side - 1 - places)


def convolve(
    images: Float[Tensor, "n c h w"],
    kernels: Float[Tensor, "m k k"],
    outside: Literal["replicate", "reflect"],
) -> Float[Tensor, "n c h w"]:
    """The images under a kernel each, or all under one.

    A kernel's entry (i, j) weighs the pixel i rows below and j columns to the right, counted from
    the kernel's middle. Kernels are large, so the work is done on spectra.
    """
    radius = kernels.shape[-1] // 2
    height, width = images.shape[2:]
    padded = F.pad(images, (radius, radius, radius, radius), mode=outside)
    size = (height + 2 * radius, width + 2 * radius)
    spectra = torch.fft.rfft2(kernels, s=size).conj().expand(len(images), -1, -1)
    filtered = torch.empty_like(padded)
    # Image by image: a transform of several rounds otherwise than that of one, and an image's noise is its own.
    for image, spectrum, found in zip(padded, spectra, filtered, strict=True):
        found.copy_(torch.fft.irfft2(torch.fft.rfft2(image) * spectrum, s=size))
    return filtered[..., :height, :width]


def smear(
    images: Float[Tensor, "n c h w"], radius: float, sigma: float, degrees: Float[Tensor, " n"]
) -> Float[Tensor, "n c h w"]:
    """The images smeared along a line from every pixel outwards, at an angle of their own.

    The weights are one half of a Gaussian, over 2 * radius + 1 steps of one pixel. At 0 degrees
    the line runs to the right, at 90 downwards.
    """
    length = int(2 * radius)
    steps = torch.arange(length + 1, device=images.device)
    weights = (-0.5 * (steps / sigma) ** 2).exp()
    weights = weights / weights.sum()
    angles = torch.deg2rad(degrees)[:, None]
    rows = (steps * angles.sin()).round().long() + length
    columns = (steps * angles.cos()).round().long() + length
    kernels = images.new_zeros(len(images), 2 * length + 1, 2 * length + 1)
    which = torch.arange(len(images), device=images.device)[:, None]
    # On a slanting line two steps can fall on one pixel, which then has the weight of both.
    kernels.index_put_((which, rows, columns), weights.expand_as(rows), accumulate=True)
    return convolve(images, kernels, "replicate")
