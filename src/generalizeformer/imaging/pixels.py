"""Bytes to numbers and back, and moving pixels about. Everything is batched, on any device."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor


def to_unit(images: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """The images as float32 in [0, 1]."""
    return images.to(torch.float32) / 255


def to_bytes(images: Float[Tensor, "n c h w"]) -> UInt8[Tensor, "n c h w"]:
    """The nearest bytes of images meant to lie in [0, 1]; what lies outside is cut off."""
    return (images * 255).round().clamp(0, 255).to(torch.uint8)


def turning(degrees: Float[Tensor, " n"]) -> Float[Tensor, "n 2 2"]:
    """Matrices that turn an image counter-clockwise, in the sense `warp` reads them."""
    angles = torch.deg2rad(degrees)
    cos, sin = angles.cos(), angles.sin()
    # Rows of an image grow downwards, so the signs are those of a clockwise turn in a textbook.
    return torch.stack((torch.stack((cos, -sin), 1), torch.stack((sin, cos), 1)), 1)


def warp(
    images: Float[Tensor, "n c h w"],
    matrices: Float[Tensor, "n 2 2"],
    outside: Literal["zeros", "border"],
) -> Float[Tensor, "n c h w"]:
    """Every image moved by its own matrix about its centre, bilinearly.

    A matrix takes the place of a pixel in the answer, in (x, y) pixels from the centre, to the
    place in the image where its value is read.
    """
    height, width = images.shape[2:]
    # affine_grid counts in half sides; without this an oblong image would shear when it turns.
    sides = torch.tensor([width, height], dtype=images.dtype, device=images.device)
    scaled = matrices * sides / sides[:, None]
    grid = F.affine_grid(
        F.pad(scaled, (0, 1)), [len(images), images.shape[1], height, width], align_corners=False
    )
    return F.grid_sample(images, grid, padding_mode=outside, align_corners=False)
