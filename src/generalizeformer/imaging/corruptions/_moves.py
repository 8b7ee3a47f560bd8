"""Moving pixels: zooming into the centre, reading at other places."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def zoom(images: Float[Tensor, "n c h w"], factor: float) -> Float[Tensor, "n c h w"]:
    """The centre of the images, bilinearly enlarged by the factor to the size they had."""
    height, width = images.shape[2:]
    centre = _middle(images, math.ceil(height / factor), math.ceil(width / factor))
    size = [round(side * factor) for side in centre.shape[2:]]
    # Corner pixels stay corner pixels, as in the published sets.
    larger = F.interpolate(centre, size, mode="bilinear", align_corners=True)
    return _middle(larger, height, width)


def _middle(images: Float[Tensor, "n c h w"], height: int, width: int) -> Float[Tensor, "n c a b"]:
    top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
    return images[:, :, top : top + height, left : left + width]


def places(height: int, width: int, like: Tensor) -> Float[Tensor, "h w 2"]:
    """The (x, y) pixel coordinates of every pixel."""
    x = torch.arange(width, dtype=like.dtype, device=like.device)
    y = torch.arange(height, dtype=like.dtype, device=like.device)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


def read(
    images: Float[Tensor, "n c h w"], where: Float[Tensor, "n h w 2"]
) -> Float[Tensor, "n c h w"]:
    """The images' values at (x, y) pixel coordinates, bilinearly; what lies outside is mirrored."""
    sides = where.new_tensor([images.shape[3], images.shape[2]])
    grid = (2 * where + 1) / sides - 1
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
