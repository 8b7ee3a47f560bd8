"""Changes of an image's appearance, with one amount per image; an amount of 0 changes nothing.

Images are floats in [0, 1]. Amounts have one entry per image, or one per image and channel.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Generator, Tensor

Images = Float[Tensor, "n c h w"]
Amounts = Float[Tensor, " n"]


def brighten(images: Images, amounts: Amounts) -> Images:
    """The images with the amount added to every pixel."""
    return images + _spread(amounts)


def contrast(images: Images, amounts: Amounts) -> Images:
    """The images with their distance to their own mean multiplied by exp(amount)."""
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    # Written as a change, so that an amount of 0 adds exactly nothing.
    return images + (images - mean) * _spread(amounts.expm1())


def gamma(images: Images, amounts: Amounts) -> Images:
    """The images raised to exp(amount): mid-tones move, black and white stay."""
    return images.clamp(0, 1) ** _spread(amounts.exp())


def tint(images: Images, gains: Float[Tensor, "n c"], offsets: Float[Tensor, "n c"]) -> Images:
    """The images with a colour cast: every channel times exp(gain), plus its offset."""
    return images * gains.exp()[:, :, None, None] + offsets[:, :, None, None]


def saturate(images: Images, amounts: Amounts) -> Images:
    """The images with colours pushed from grey by the amount; -1 gives grey. Needs 3 channels."""
    weights = images.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    grey = (images * weights).sum(dim=1, keepdim=True)
    return images + (images - grey) * _spread(amounts)


def invert(images: Images, amounts: Amounts) -> Images:
    """The images, or their negatives where the amount is 1."""
    return images + (1 - 2 * images) * _spread(amounts)


def trace(images: Images, amounts: Amounts) -> Images:
    """The images, or dark lines on white where they change, as a pencil would draw them, where the amount is 1."""
    grey = images.mean(1, keepdim=True)
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    across = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
    down = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    strength = (across.square() + down.square()).sqrt()
    # Lines as dark as the strongest tenth of the edges allows: drawings have no faint lines.
    strongest = torch.quantile(strength.flatten(1), 0.98, dim=1).clamp(min=0.05)
    lines = 1 - (strength / _spread(strongest)).clamp(max=1)
    return images + (lines - images) * _spread(amounts)


def blur(images: Images, sigmas: Amounts, largest: float) -> Images:
    """The images under a Gaussian of their own sigma in pixels, none above `largest`."""
    radius = math.ceil(3 * largest)
    offsets = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    # A sigma this small puts all weight on the centre: such images pass through unchanged.
    weights = (-0.5 * (offsets / sigmas.clamp(min=1e-3)[:, None]) ** 2).exp()
    weights = weights / weights.sum(dim=1, keepdim=True)
    count, channels, height, width = images.shape
    # Every image has its own kernel, so images become channels and every channel a group.
    kernels = weights.repeat_interleave(channels, dim=0)[:, None]
    planes = images.reshape(1, count * channels, height, width)
    planes = F.pad(planes, (radius, radius, radius, radius), mode="replicate")
    planes = F.conv2d(planes, kernels[:, :, None, :], groups=count * channels)
    planes = F.conv2d(planes, kernels[:, :, :, None], groups=count * channels)
    return planes.view(count, channels, height, width)


def coarsen(images: Images, levels: Int64[Tensor, " n"], factors: Sequence[int]) -> Images:
    """The images with detail lost as if taken at a lower resolution.

    Level 0 leaves an image alone; level k takes its resolution down by `factors[k - 1]`.
    """
    height, width = images.shape[2:]
    for level, factor in enumerate(factors, start=1):
        small = (max(1, height // factor), max(1, width // factor))
        low = F.interpolate(images, size=small, mode="area")
        low = F.interpolate(low, size=(height, width), mode="bilinear", align_corners=False)
        images = torch.where((levels == level)[:, None, None, None], low, images)
    return images


def roughen(images: Images, amounts: Amounts, generator: Generator) -> Images:
    """The images with Gaussian noise, the amount being its standard deviation.

    The noise is drawn where the images are, from a seed that comes from the generator: drawing
    full-size noise on a CPU and moving it would take longer than everything else together.
    """
    seed = int(torch.randint(2**62, (1,), generator=generator))
    local = torch.Generator(device=images.device).manual_seed(seed)
    noise = torch.randn(images.shape, generator=local, device=images.device, dtype=images.dtype)
    return images + noise * _spread(amounts)


def _spread(amounts: Amounts) -> Float[Tensor, "n 1 1 1"]:
    return amounts[:, None, None, None]
