"""What processing does: less contrast, rubber-sheet warps, coarse pixels, JPEG."""

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.imaging.corruptions import _jpeg
from generalizeformer.imaging.corruptions._draws import Draws
from generalizeformer.imaging.corruptions._filters import smooth
from generalizeformer.imaging.corruptions._moves import places, read

Images = Float[Tensor, "n c h w"]


def contrast(images: Images, draws: Draws, kept: float) -> Images:
    """The images with this share of every channel's distance to its own mean."""
    means = images.mean(dim=(2, 3), keepdim=True)
    return (images - means) * kept + means


def elastic_transform(
    images: Images, draws: Draws, strength: float, smoothness: float, jitter: float
) -> Images:
    """The images on a rubber sheet: three points jump a little, then every pixel drifts smoothly.

    All lengths are in shorter sides: how far pixels would drift without smoothing, the sigma of
    the smoothing, and how far the points jump at most.
    """
    height, width = images.shape[2:]
    side = min(height, width)
    images = _jumped(images, draws.uniform(-jitter * side, jitter * side, 3, 2))
    drift = smooth(draws.uniform(-1, 1, 2, height, width), smoothness * side, 3, outside="mirror")
    where = places(height, width, images) + strength * side * drift.permute(0, 2, 3, 1)
    return read(images, where)


def _jumped(images: Images, jumps: Float[Tensor, "n 3 2"]) -> Images:
    """The images under the affine map that takes three corners of a central square along."""
    height, width = images.shape[2:]
    reach = max(1, min(height, width) // 3)
    centre = jumps.new_tensor([width // 2, height // 2])
    corners = centre + reach * jumps.new_tensor([[1, 1], [1, -1], [-1, -1]])
    moved = corners + jumps
    # What a step to the right and a step down become: the last two corners differ in x, the first two in y.
    x, y = (moved[:, 1] - moved[:, 2]) / (2 * reach), (moved[:, 0] - moved[:, 1]) / (2 * reach)
    area = (x[:, :1] * y[:, 1:] - x[:, 1:] * y[:, :1])[:, None, None]
    back_x = torch.stack((y[:, 1], -x[:, 1]), dim=1)[:, None, None] / area
    back_y = torch.stack((-y[:, 0], x[:, 0]), dim=1)[:, None, None] / area
    grid = places(height, width, images) - moved[:, None, None, 1]
    # Not a matrix product: it rounds differently in another batch, and a square almost folded flat shows that.
    where = grid[..., :1] * back_x + grid[..., 1:] * back_y + corners[1]
    return read(images, where)


def pixelate(images: Images, draws: Draws, kept: float) -> Images:
    """The images in larger pixels, each the mean of those whose centre it covers."""
    height, width = images.shape[2:]
    down, across = _cells(height, kept).to(images), _cells(width, kept).to(images)
    return down @ images @ across.T


def _cells(side: int, kept: float) -> Float[Tensor, "side side"]:
    """What every pixel of a line gives to every other when pixels of one cell share their mean."""
    cells = max(1, int(side * kept))
    own = ((2 * torch.arange(side) + 1) * cells) // (2 * side)
    same = (own[:, None] == own).to(torch.float32)
    return same / same.sum(dim=1, keepdim=True)


def jpeg_compression(images: Images, draws: Draws, quality: float) -> Images:
    """The images after a JPEG file of this quality."""
    return _jpeg.compress(images, int(quality))
