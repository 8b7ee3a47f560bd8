"""Colour jitter: brightness, contrast, saturation and hue, with one factor per image, in torchvision's formulas.

Images are floats in [0, 1], and what a change pushes outside is cut off, as it would be in bytes. A factor of 1
and a hue shift of 0 change nothing. Images without 3 channels have no colours: only the first two change them.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Images = Float[Tensor, "n c h w"]
Factors = Float[Tensor, " n"]

LUMA = (0.299, 0.587, 0.114)  # what red, green and blue add to grey


def brightness(images: Images, factors: Factors) -> Images:
    """The images times their factors; 0 gives black."""
    return (images * _spread(factors)).clamp_(0, 1)


def contrast(images: Images, factors: Factors) -> Images:
    """The images with their distance to their mean grey times their factors; 0 gives that grey."""
    means = images.mean(dim=(2, 3))
    # The grey of the mean is the mean of the grey, and costs nothing.
    centre = _grey(means[:, :, None, None]) if _coloured(images) else means.mean(1)[:, None, None]
    return _away(images, centre[:, None], factors)


def saturation(images: Images, factors: Factors) -> Images:
    """The images with the distance of every pixel to its own grey times their factors; 0 gives greyscale."""
    return _away(images, _grey(images)[:, None], factors) if _coloured(images) else images


def hue(images: Images, shifts: Factors) -> Images:
    """The images with every colour moved round the circle of hues; a shift of 1 is the whole circle.

    A channel is full within a sixth of the circle from its own hue, absent beyond a third, and on a
    straight line between: that turns a hue back to colours without going through its six cases.
    """
    if not _coloured(images):
        return images
    low, chroma, angles = _cylinder(images)
    angles += shifts[:, None, None]
    turned = torch.empty_like(images)
    for channel in range(3):
        away = angles - channel / 3
        away -= away.round()
        share = torch.rsub(away.abs_(), 2, alpha=6).clamp_(0, 1)
        torch.addcmul(low, chroma, share, out=turned[:, channel])
    return turned


def greyscale(images: Images, chosen: Bool[Tensor, " n"]) -> Images:
    """The images, the chosen ones without their colours."""
    if not _coloured(images):
        return images
    rows = chosen.nonzero().squeeze(1)
    grey = _grey(images[rows])[:, None].expand(-1, 3, -1, -1)
    return images.index_copy(0, rows, grey)


def _coloured(images: Images) -> bool:
    return images.shape[1] == 3


def _grey(images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n h w"]:
    red, green, blue = images.unbind(1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _away(images: Images, centres: Float[Tensor, "n 1 _ _"], factors: Factors) -> Images:
    factors = _spread(factors)
    return (images * factors).add_(centres * (1 - factors)).clamp_(0, 1)


def _cylinder(
    images: Float[Tensor, "n 3 h w"],
) -> tuple[Float[Tensor, "n h w"], Float[Tensor, "n h w"], Float[Tensor, "n h w"]]:
    """The least channel, the distance to the greatest, and the hue as a share of the circle."""
    red, green, blue = images.unbind(1)
    low, high = images.amin(1), images.amax(1)
    chroma = high - low
    warm = (blue - red).add_(chroma, alpha=2)
    cold = (red - green).add_(chroma, alpha=4)
    sixths = torch.where(red == high, green - blue, torch.where(green == high, warm, cold))
    # Grey has no hue: any will do, but it must be a number.
    return low, chroma, sixths.div_((6 * chroma).clamp_(min=1e-6))


def _spread(factors: Factors) -> Float[Tensor, "n 1 1 1"]:
    return factors[:, None, None, None]
