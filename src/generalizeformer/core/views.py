"""Views of images for MEMO's marginal entropy.

The same seeded views for every image, so that an answer depends neither on chance nor on what else is in
the call; and geometric plus contrast only, so that they make sense in whatever units the images come.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.shapes import Images


def views(
    images: Images, count: int, seed: int = 0
) -> Float[Tensor, "views images channels height width"]:
    """`count` views of every image: random crop, flip, a small rotation and contrast. The first is the image."""
    made = [images]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count - 1):
        scale, shift_x, shift_y, turn, flip, contrast = torch.rand(6, generator=generator).tolist()
        size = math.sqrt(0.6 + 0.4 * scale)
        angle = math.radians(20 * turn - 10)
        sign = -1.0 if flip < 0.5 else 1.0
        matrix = torch.tensor(
            [
                [
                    sign * size * math.cos(angle),
                    -size * math.sin(angle),
                    (1 - size) * (2 * shift_x - 1),
                ],
                [
                    sign * size * math.sin(angle),
                    size * math.cos(angle),
                    (1 - size) * (2 * shift_y - 1),
                ],
            ],
            dtype=images.dtype,
            device=images.device,
        )
        grid = F.affine_grid(
            matrix.expand(len(images), 2, 3), list(images.shape), align_corners=False
        )
        view = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
        middle = view.mean((1, 2, 3), keepdim=True)
        made.append(middle + (view - middle) * (0.7 + 0.6 * contrast))
    return torch.stack(made)
