"""Blurs: out of focus, through frosted glass, by a moving camera, by a zooming one. All keep a flat image."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from generalizeformer.imaging.corruptions._draws import Draws
from generalizeformer.imaging.corruptions._filters import convolve, smear, smooth
from generalizeformer.imaging.corruptions._moves import zoom

Images = Float[Tensor, "n c h w"]

SWAPS = 2  # times a pixel moves in one round of glass_blur


def defocus_blur(images: Images, draws: Draws, radius: float, softness: float) -> Images:
    """The images under a disk, as out of focus."""
    disk = _disk(radius, softness, farthest=min(images.shape[2:]) - 1)
    return convolve(images, disk.to(images.device)[None], "reflect")


def _disk(radius: float, softness: float, farthest: int) -> Float[Tensor, "k k"]:
    """A disk that sums to 1, its rim softened by a small Gaussian; nothing lies beyond `farthest` pixels."""
    rim = 1 if radius <= 8 else 2
    reach = min(int(radius) + rim, farthest)
    squares = torch.arange(-reach, reach + 1) ** 2
    disk = (squares + squares[:, None] <= radius**2).to(torch.float32)
    small = (-0.5 * (torch.arange(-rim, rim + 1) / softness) ** 2).exp()
    soft = F.conv2d(disk[None, None], torch.outer(small, small)[None, None], padding=rim)[0, 0]
    return soft / soft.sum()


def glass_blur(
    images: Images, draws: Draws, sigma: float, farthest: float, rounds: float
) -> Images:
    """The images with pixels shuffled within a short distance, smoothed before and after.

    The published script swaps pixels one after another, so that a pixel moves about twice in a
    round. Here all pixels are read at once from a random place nearby, twice in a round: the
    typical shift is within a tenth of the original, but a pixel may appear twice or vanish.
    """
    shuffled = smooth(images, sigma, reach=4, outside="edge")
    for _ in range(int(rounds) * SWAPS):
        shuffled = _shuffle(shuffled, draws, int(farthest))
    return smooth(shuffled, sigma, reach=4, outside="edge")


def _shuffle(images: Images, draws: Draws, farthest: int) -> Images:
    count, channels, height, width = images.shape
    shifts = draws.whole(-farthest, farthest, 2, height, width)
    down, across = shifts.unbind(1)
    rows = (torch.arange(height, device=images.device)[:, None] + down).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + across).clamp(0, width - 1)
    taken = (rows * width + columns).view(count, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, taken).view_as(images)


def motion_blur(images: Images, draws: Draws, radius: float, sigma: float) -> Images:
    """The images smeared along a line at most 45 degrees from level."""
    return smear(images, radius, sigma, draws.uniform(-45, 45))


def zoom_blur(images: Images, draws: Draws, zooms: float, step: float) -> Images:
    """The mean of the images and of ever larger zooms into them, the first of which is none."""
    total = images.clone()
    for index in range(int(zooms)):
        total += zoom(images, 1 + index * step)
    return total / (zooms + 1)
