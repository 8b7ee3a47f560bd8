"""Textures made of noise: clouds by midpoint displacement, and ice."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from generalizeformer.imaging.corruptions._draws import Draws
from generalizeformer.imaging.corruptions._filters import smear

ICE = (0.82, 0.93, 1.0)  # red, green and blue of the whitest ice


def plasma(draws: Draws, height: int, width: int, decay: float) -> Float[Tensor, "n 1 h w"]:
    """Clouds from 0 to 1 by the diamond-square algorithm, on a sheet whose opposite edges meet.

    The sheet's side is the next power of 2, and the image sees a corner of it. With every halving
    of the step the random part shrinks by decay squared, as in the published sets.
    """
    side = 1 << (max(height, width, 2) - 1).bit_length()
    sheet = draws.uniform(-1, 1, side, side)  # every point's random part stands at its place
    sheet[:, 0, 0] = 0
    step, amplitude = side, 1.0
    while step >= 2:
        half = step // 2
        corners, middles = sheet[:, ::step, ::step], sheet[:, half::step, half::step]
        middles.mul_(amplitude).add_(_ahead(_ahead(corners, 1), 2) / 4)
        tops, lefts = sheet[:, ::step, half::step], sheet[:, half::step, ::step]
        tops.mul_(amplitude).add_((_ahead(corners, 2) + _behind(middles, 1)) / 4)
        lefts.mul_(amplitude).add_((_ahead(corners, 1) + _behind(middles, 2)) / 4)
        step, amplitude = half, amplitude / decay**2
    lowest, highest = sheet.amin(dim=(1, 2), keepdim=True), sheet.amax(dim=(1, 2), keepdim=True)
    return ((sheet - lowest) / (highest - lowest))[:, None, :height, :width]


def _ahead(points: Float[Tensor, "n a b"], dim: int) -> Float[Tensor, "n a b"]:
    """Every point plus the next one."""
    return points + points.roll(-1, dim)


def _behind(points: Float[Tensor, "n a b"], dim: int) -> Float[Tensor, "n a b"]:
    """Every point plus the one before."""
    return points + points.roll(1, dim)


def crystals(draws: Draws, channels: int, height: int, width: int) -> Float[Tensor, "n c h w"]:
    """Ice in [0, 1]: needles along three directions 60 degrees apart, on ridges, in patches.

    Lengths follow the image: a small one shows about as many needles as a large one.
    """
    needles = _needles(draws, height, width)
    ridges = _ridges(draws, height, width)
    patches = plasma(draws, height, width, decay=1.5)
    ice = 0.15 + 1.5 * patches * (0.2 + 0.4 * ridges + needles)
    colour = ice.new_tensor(ICE if channels == 3 else [sum(ICE) / 3] * channels)
    return ice.clamp(0, 1) * colour.view(1, -1, 1, 1)


def _needles(draws: Draws, height: int, width: int) -> Float[Tensor, "n 1 h w"]:
    """Streaks that start bright at random places and fade along one of three directions."""
    length, first = min(height, width) / 10, draws.uniform(0, 60)
    total = torch.zeros(1, device=draws.device)
    for turn, thickness in ((0, 1), (60, 2), (120, 3)):
        # Thick needles are thin ones of a smaller sheet, which takes less work too.
        sheet = draws.uniform(0, 1, 1, height // thickness, width // thickness)
        # What stands on the border would go on beyond it, as a bar instead of a needle.
        starts = F.pad((sheet > 0.98).to(torch.float32), (1, 1, 1, 1))
        streaks = smear(starts, length, length / 2, first + turn)
        streaks = F.interpolate(streaks, (height, width), mode="bilinear", align_corners=False)
        total = torch.maximum(total, _to_one(streaks))
    return total


def _ridges(draws: Draws, height: int, width: int) -> Float[Tensor, "n 1 h w"]:
    """Sharp lines at several scales: where smooth noise changes its sign."""
    total, weight, cells = torch.zeros(1, device=draws.device), 1.0, 4
    while cells <= max(8, min(height, width) // 4):
        noise = draws.normal(1, cells, cells)
        noise = F.interpolate(noise, (height, width), mode="bicubic", align_corners=False)
        total = total + weight * (1 - noise.abs()).clamp(min=0) ** 4
        weight, cells = weight * 0.8, cells * 2
    return _to_one(total)


def _to_one(planes: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n 1 h w"]:
    """The planes scaled so that each reaches from 0 to 1."""
    return planes.clamp(min=0) / planes.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-6)
