"""Whole images turned about their centre, by a cubic spline or bilinearly, in place: the canvas keeps its shape."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from generalizeformer.errors import ImageError
from generalizeformer.imaging.pixels import turning, warp

How = Literal["csd", "clean"]

LARGEST = 64 * 64  # pixels; the spline's map has as many rows and columns
ON_THE_EDGE = 1e-9  # pixels; a place that rounding moved out of the image is still in it


def turn(images: Float[Tensor, "n c h w"], degrees: float, how: How) -> Float[Tensor, "n c h w"]:
    """The images turned counter-clockwise; what comes into view is 0.

    csd: a cubic spline, which may go beyond the values of the image; it gives what scipy.ndimage.rotate gives
    with reshape off and all else as it is by default. clean: bilinear. Turns that only move pixels are exact.
    """
    if how not in get_args(How):
        raise ImageError(f"turn: how is {how!r}; choose one of: {', '.join(get_args(How))}")
    height, width = images.shape[2:]
    if degrees % 180 == 0 or (degrees % 90 == 0 and height == width):
        return torch.rot90(images, int(degrees // 90) % 4, (2, 3))
    if how == "clean":
        angles = torch.full((len(images),), float(degrees), dtype=images.dtype)
        return warp(images, turning(angles.to(images.device)), "zeros")
    moved = images.flatten(2).double() @ _spline_map(height, width, degrees).to(images.device).T
    return moved.to(images.dtype).view(images.shape)


def _spline_map(height: int, width: int, degrees: float) -> Float64[Tensor, "hw hw"]:
    """What every pixel of the turned image takes from every pixel of the image: the spline is linear in them."""
    if height * width > LARGEST:
        raise ImageError(
            f"turn: images are {height} x {width}; the spline takes at most {LARGEST} pixels, so "
            "make them smaller or turn them with clean"
        )
    rows, columns = _places(height, width, degrees)
    inside = _inside(rows, height) & _inside(columns, width)
    vertical, horizontal = _interpolation(rows, height), _interpolation(columns, width)
    taken = vertical[:, :, None] * horizontal[:, None, :] * inside[:, None, None]
    return taken.flatten(1)


def _places(
    height: int, width: int, degrees: float
) -> tuple[Float64[Tensor, " hw"], Float64[Tensor, " hw"]]:
    """Row and column of the image that every pixel of the turned image shows."""
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=torch.float64)
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    offsets = torch.stack((xs.flatten(), ys.flatten()), 1) - centre
    matrix = turning(torch.tensor([degrees], dtype=torch.float64))[0]
    columns, rows = (offsets @ matrix.T + centre).unbind(1)
    return rows, columns


def _inside(places: Float64[Tensor, " m"], count: int) -> Bool[Tensor, " m"]:
    return (places >= -ON_THE_EDGE) & (places <= count - 1 + ON_THE_EDGE)


def _interpolation(places: Float64[Tensor, " m"], count: int) -> Float64[Tensor, "m count"]:
    """What the cubic spline through `count` values takes from each of them at these places."""
    knots = torch.arange(count, dtype=torch.float64)
    # The spline is a sum of bumps; their heights are those for which it meets the values at the knots.
    heights_of_values: Tensor = torch.linalg.inv(_bumps(knots, count))
    return _bumps(places, count) @ heights_of_values


def _bumps(places: Float64[Tensor, " m"], count: int) -> Float64[Tensor, "m count"]:
    """The height of every knot's cubic B-spline at these places; beyond its ends the line is mirrored."""
    knots = places.floor()[:, None] + torch.arange(-1, 3)
    heights = _bump(places[:, None] - knots)
    period = max(2 * (count - 1), 1)
    folded = knots.long() % period
    folded = torch.minimum(folded, period - folded)
    return torch.zeros(len(places), count, dtype=torch.float64).scatter_add(1, folded, heights)


def _bump(distance: Float64[Tensor, "m 4"]) -> Float64[Tensor, "m 4"]:
    """The cubic B-spline of unit knots."""
    away = distance.abs()
    outer = (2 - away).clamp(min=0) ** 3 / 6
    return torch.where(away < 1, 2 / 3 - away**2 + away**3 / 2, outer)
