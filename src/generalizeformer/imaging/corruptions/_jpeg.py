"""What baseline JPEG loses (ITU-T T.81, with colours as in JFIF): everything but the file itself.

Colour is kept at half the resolution, and coefficients are rounded as libjpeg does for a quality.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# Annex K of the standard: the step of every coefficient at quality 50.
_LUMA = """
16 11 10 16 24 40 51 61
12 12 14 19 26 58 60 55
14 13 16 24 40 57 69 56
14 17 22 29 51 87 80 62
18 22 37 56 68 109 103 77
24 35 55 64 81 104 113 92
49 64 78 87 103 121 120 101
72 92 95 98 112 100 103 99
"""
_CHROMA = """
17 18 24 47 99 99 99 99
18 21 26 66 99 99 99 99
24 26 56 99 99 99 99 99
47 66 99 99 99 99 99 99
99 99 99 99 99 99 99 99
99 99 99 99 99 99 99 99
99 99 99 99 99 99 99 99
99 99 99 99 99 99 99 99
"""

# Red, green, blue to brightness and the two colour differences.
_COLOURS = torch.tensor(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]
)

# Halves are common here and float arithmetic blurs them. This leans them the way libjpeg rounds them, so that a hair's
# breadth cannot move a coefficient by a whole step: brightness up, colour differences down, coefficients away from 0.
_LEAN = 1e-3


def compress(images: Float[Tensor, "n c h w"], quality: int) -> Float[Tensor, "n c h w"]:
    """The images after being saved and opened. Colour images have 3 channels; others are grey ones."""
    # Centred on 0, as the standard wants brightness, and as colour differences are anyway.
    values = (images * 255).round() - 128
    if images.shape[1] != 3:
        return (_rounded(values, _LUMA, quality) + 128) / 255
    colours = _COLOURS.to(images.device)
    # The rows of colour differences sum to 0, so that the shift by 128 leaves them alone.
    lean = _LEAN * values.new_tensor([1, -1, -1]).view(1, 3, 1, 1)
    planes = (torch.einsum("dc,nchw->ndhw", colours, values) + lean).round()
    luma = _rounded(planes[:, :1], _LUMA, quality)
    planes = torch.cat((luma, _coarse(planes[:, 1:], quality)), dim=1)
    back = torch.linalg.inv(_COLOURS.double()).float().to(images.device)
    return (torch.einsum("dc,nchw->ndhw", back, planes) + 128).clamp(0, 255) / 255


def _coarse(colour: Float[Tensor, "n 2 h w"], quality: int) -> Float[Tensor, "n 2 h w"]:
    """Colour differences, rounded at half the resolution."""
    height, width = colour.shape[2:]
    even = F.pad(colour, (0, width % 2, 0, height % 2), mode="replicate")
    half = _rounded(F.avg_pool2d(even, 2).round(), _CHROMA, quality)
    whole = F.interpolate(half, scale_factor=2, mode="bilinear", align_corners=False)
    return whole[..., :height, :width]


def _rounded(
    planes: Float[Tensor, "n c h w"], table: str, quality: int
) -> Float[Tensor, "n c h w"]:
    """The planes with the cosine coefficients of every 8 by 8 block rounded to whole steps."""
    height, width = planes.shape[2:]
    padded = F.pad(planes, (0, -width % 8, 0, -height % 8), mode="replicate")
    *outer, tall, wide = padded.shape
    blocks = padded.view(*outer, tall // 8, 8, wide // 8, 8).transpose(3, 4)
    waves, steps = _waves().to(planes.device), _steps(table, quality).to(planes.device)
    counts = waves @ blocks @ waves.T / steps
    counts = (counts + _LEAN * counts.sign()).round()
    restored: Tensor = (waves.T @ (counts * steps) @ waves + _LEAN).round().clamp(-128, 127)
    return restored.transpose(3, 4).reshape(padded.shape)[..., :height, :width]


def _waves() -> Float[Tensor, "8 8"]:
    """The orthonormal cosine transform of 8 values, one wave a row."""
    angles = (
        torch.arange(8, dtype=torch.float64)[:, None] * (2 * torch.arange(8) + 1) * math.pi / 16
    )
    waves = angles.cos() / 2
    waves[0] /= math.sqrt(2)
    return waves.float()


def _steps(table: str, quality: int) -> Float[Tensor, "8 8"]:
    """The steps at a quality from 1 to 100, in whole numbers as libjpeg counts them."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    base = torch.tensor([int(step) for step in table.split()]).view(8, 8)
    return ((base * percent + 50) // 100).clamp(1, 255).to(torch.float32)
