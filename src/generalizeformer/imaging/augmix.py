"""The views MEMO averages over: a random crop, mixed with copies of itself that went through chains of small changes.

Zhang et al., 2022 (MEMO), on top of Hendrycks et al., 2020 (AugMix). Every view of every image has draws of its own.
Moving an image fills what comes in from outside with black, as the published code does: an image of one colour
keeps it everywhere else. The published code mixes standardised pixels; weights that sum to 1 make that the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from generalizeformer.errors import DataError
from generalizeformer.imaging.augmentation import Config as Augmentation
from generalizeformer.imaging.augmentation import augment
from generalizeformer.imaging.pixels import to_bytes, to_unit, turning

TOGETHER = 64  # views made at once: more would only take more memory

Images = UInt8[Tensor, "n c h w"]
Levels = Float[Tensor, " n"]  # how far a change goes; 10 is the most


@dataclass(frozen=True, kw_only=True)
class Config:
    """MEMO's numbers. At its severity an image turns by 2 degrees at most."""

    crop: tuple[float, float] = (0.08, 1.0)  # share of the area, from and to
    chains: int = 3
    depth: int = 3  # changes in a chain, at most
    severity: float = 1.0  # levels are uniform from 0.1 to this

    def __post_init__(self) -> None:
        for field, value in (("chains", self.chains), ("depth", self.depth)):
            if value < 1:
                raise DataError(f"augmix: {field} is {value}; it must be at least 1")
        if not 0.1 <= self.severity <= 10:
            raise DataError(
                f"augmix: severity is {self.severity}; it must be between 0.1 and 10, MEMO uses 1"
            )


MEMO = Config()


def views(
    images: UInt8[Tensor, "n c h w"], count: int, generator: Generator, config: Config = MEMO
) -> UInt8[Tensor, "v n c h w"]:
    """`count` views of every image. The draws come from a CPU generator wherever the images are."""
    if count < 0:
        raise DataError(f"augmix: count is {count}; ask for 0 or more views of every image")
    preparation = Augmentation(crop=config.crop, flip_chance=0.5)
    made = images.new_empty(count * len(images), *images.shape[1:])
    for start in range(0, len(made), TOGETHER):
        part = torch.arange(start, min(start + TOGETHER, len(made)), device=images.device)
        cropped = augment(images[part % len(images)], generator, preparation)
        made[part] = _mixed(cropped, generator, config)
    return made.view(count, *images.shape)


def _mixed(images: Images, generator: Generator, config: Config) -> Images:
    """Every image, blended with the weighted mean of its chains."""
    weights, share = (w.to(images.device) for w in _weights(len(images), generator, config.chains))
    chained = to_unit(_chained(images.repeat(config.chains, 1, 1, 1), generator, config))
    mean = torch.einsum("knchw,nk->nchw", chained.view(config.chains, *images.shape), weights)
    return to_bytes(torch.lerp(mean, to_unit(images), share[:, None, None, None]))


def _weights(
    count: int, generator: Generator, chains: int
) -> tuple[Float[Tensor, "n k"], Float[Tensor, " n"]]:
    """Weights of the chains, uniform among those that sum to 1, and the share of the image itself."""
    weights = torch.empty(count, chains).exponential_(generator=generator)
    return weights / weights.sum(1, keepdim=True), torch.rand(count, generator=generator)


def _chained(images: Images, generator: Generator, config: Config) -> Images:
    """The images after 1 to `depth` changes, drawn one by one for every image."""
    count = len(images)
    depths = torch.randint(1, config.depth + 1, (count,), generator=generator)
    for step in range(config.depth):
        kinds = torch.randint(len(TONES) + len(MOVES), (count,), generator=generator)
        levels = 0.1 + (config.severity - 0.1) * torch.rand(count, generator=generator)
        signs = 2.0 * torch.randint(2, (count,), generator=generator) - 1
        images = _changed(images, kinds.where(step < depths, -1), levels, signs)
    return images


def _changed(images: Images, kinds: Int64[Tensor, " n"], levels: Levels, signs: Levels) -> Images:
    """Every image after the change of its kind; -1 is none."""
    images = images.clone()
    for kind, tone in enumerate(TONES):
        rows = (kinds == kind).nonzero().squeeze(1)
        there = rows.to(images.device)
        images[there] = tone(images[there], levels[rows].to(images.device))
    rows = (kinds >= len(TONES)).nonzero().squeeze(1)
    there, size = rows.to(images.device), (images.shape[2], images.shape[3])
    matrices = torch.zeros(len(rows), 2, 3)
    for kind, move in enumerate(MOVES, start=len(TONES)):
        mine = kinds[rows] == kind
        matrices[mine] = move(levels[rows][mine], signs[rows][mine], size)
    images[there] = _moved(images[there], matrices.to(images.device))
    return images


def autocontrast(images: Images, levels: Levels) -> Images:
    """The images with every channel stretched to run from 0 to 255; one of a single value stays. Knows no levels."""
    low = images.amin((2, 3), keepdim=True).double()
    span = images.amax((2, 3), keepdim=True).double() - low
    stretched = ((images - low) * 255 / span.clamp(min=1)).to(torch.uint8)
    return torch.where(span > 0, stretched, images)


def equalize(images: Images, levels: Levels) -> Images:
    """The images with every channel's values spread evenly, as Pillow does it. Knows no levels."""
    planes = images.flatten(0, 1).flatten(1).long()
    offsets = 256 * torch.arange(len(planes), device=images.device)[:, None]
    counts = (planes + offsets).flatten().bincount(minlength=256 * len(planes)).view(-1, 256)
    last = counts.gather(1, planes.amax(1, keepdim=True))
    steps = (planes.shape[1] - last) // 255
    before = counts.cumsum(1) - counts
    table = ((steps // 2 + before) // steps.clamp(min=1)).clamp(max=255)
    return torch.where(steps > 0, table.gather(1, planes), planes).to(torch.uint8).view_as(images)


def posterize(images: Images, levels: Levels) -> Images:
    """The images with only their highest bits, 4 and fewer from level 2.5 on."""
    bits = 4 - (0.4 * levels).long()
    return images & (256 - 2 ** (8 - bits)).to(torch.uint8)[:, None, None, None]


def solarize(images: Images, levels: Levels) -> Images:
    """The images with their brightest values turned into negatives."""
    limits = 256 - (25.6 * levels).long()
    return torch.where(images >= limits[:, None, None, None], 255 - images, images)


def _rotate(levels: Levels, signs: Levels, size: tuple[int, int]) -> Float[Tensor, "n 2 3"]:
    return F.pad(turning(signs * (3 * levels).floor()), (0, 1))


def _shear_x(levels: Levels, signs: Levels, size: tuple[int, int]) -> Float[Tensor, "n 2 3"]:
    """The top row stays where it is, so rows in the middle move as well."""
    amounts = 0.03 * levels * signs
    return _matrix(len(levels), across=amounts, x=amounts * size[0] / 2)


def _shear_y(levels: Levels, signs: Levels, size: tuple[int, int]) -> Float[Tensor, "n 2 3"]:
    amounts = 0.03 * levels * signs
    return _matrix(len(levels), down=amounts, y=amounts * size[1] / 2)


def _translate_x(levels: Levels, signs: Levels, size: tuple[int, int]) -> Float[Tensor, "n 2 3"]:
    """By whole pixels, so small images may stay where they are."""
    return _matrix(len(levels), x=signs * (levels * size[1] / 30).floor())


def _translate_y(levels: Levels, signs: Levels, size: tuple[int, int]) -> Float[Tensor, "n 2 3"]:
    return _matrix(len(levels), y=signs * (levels * size[0] / 30).floor())


TONES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    autocontrast,
    equalize,
    posterize,
    solarize,
)
MOVES: tuple[Callable[[Tensor, Tensor, tuple[int, int]], Tensor], ...] = (
    _rotate,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
)


def _matrix(
    count: int,
    across: Tensor | float = 0.0,
    down: Tensor | float = 0.0,
    x: Tensor | float = 0.0,
    y: Tensor | float = 0.0,
) -> Float[Tensor, "n 2 3"]:
    """Where each pixel is read: x + across * y + x offset, and so on, in pixels from the centre."""
    matrices = torch.eye(2, 3).repeat(count, 1, 1)
    matrices[:, 0, 1], matrices[:, 0, 2] = across, x
    matrices[:, 1, 0], matrices[:, 1, 2] = down, y
    return matrices


def _moved(images: Images, matrices: Float[Tensor, "n 2 3"]) -> Images:
    """The images, each read where its own matrix says, bilinearly; black outside."""
    if not len(images):
        return images
    # affine_grid counts in half sides, on both ends of the matrix.
    half = torch.tensor([images.shape[3], images.shape[2], 2.0], device=images.device) / 2
    grid = F.affine_grid(matrices * half / half[:2, None], list(images.shape), align_corners=False)
    return to_bytes(F.grid_sample(to_unit(images), grid, align_corners=False))
