"""Random looks: pseudo-domains made of any images, one look for every group of images."""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from generalizeformer.errors import DataError
from generalizeformer.imaging import appearance
from generalizeformer.imaging.pixels import to_bytes, to_unit, turning, warp

FACTORS = (2, 3, 4)  # how much lower a low resolution can be


@dataclass(frozen=True, kw_only=True)
class Config:
    """How far looks may go. A limit is the largest effect at strength 1, and 0 switches it off."""

    strength: float = 1.0  # multiplies every limit and, up to 1, every chance
    geometry: bool = False  # also turn, scale and shear
    chance: float = 0.5  # that a group takes an operation, each drawn by itself
    brightness: float = 0.25  # added to pixels in [0, 1], either way
    contrast: float = 0.7  # log of the factor, either way
    gamma: float = 0.7  # log of the exponent, either way
    gain: float = 0.4  # log of a channel's factor, either way
    offset: float = 0.15  # added to a channel, either way
    saturation: float = 0.8  # share of colour added or taken
    grey_chance: float = 0.15  # that a group loses its colours altogether
    invert_chance: float = 0.15  # that a group becomes a negative
    trace_chance: float = 0.0  # that a group becomes line drawings
    blur: float = 0.03  # sigma as a share of the shorter side
    coarse_chance: float = 0.25  # that a group has a lower resolution
    noise: float = 0.12  # standard deviation
    rotation: float = 30.0  # degrees, either way; as all below, only with geometry
    scale: float = 0.25  # log of the factor, either way
    shear: float = 0.25  # sideways pixels for every pixel of height, either way

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0:
                raise DataError(
                    f"looks: {field.name} is {value}; it must be 0 or more, where 0 is off"
                )
            if field.name.endswith("chance") and value > 1:
                raise DataError(f"looks: {field.name} is {value}; a chance is between 0 and 1")


def apply(
    images: UInt8[Tensor, "n c h w"],
    groups: Int64[Tensor, " n"],
    generator: Generator,
    config: Config,
) -> UInt8[Tensor, "n c h w"]:
    """The images with one random look per group; images of a group change in the same way.

    The draws come from a CPU generator wherever the images are. Only noise differs within a group.
    """
    if config.strength == 0:
        return images.clone()
    ids, groups = torch.unique(groups.to(images.device), return_inverse=True)
    draws = _Draws(len(ids), groups, generator, config)
    changed = to_unit(images)
    if config.geometry:
        changed = _move(changed, draws, config)
    if config.trace_chance:
        changed = appearance.trace(changed, draws.happens(config.trace_chance))
    changed = _defocus(changed, draws, config)
    changed = _recolour(changed, draws, config)
    noise = draws.sometimes(draws.upto(config.noise))
    return to_bytes(appearance.roughen(changed.clamp(0, 1), noise, generator))


class _Draws:
    """Numbers drawn once per group, given back once per image and on the images' device."""

    def __init__(
        self, count: int, groups: Int64[Tensor, " n"], generator: Generator, config: Config
    ) -> None:
        self.count, self.groups, self.generator = count, groups, generator
        self.strength, self.chance = config.strength, config.chance

    def uniform(self, *shape: int) -> Float[Tensor, " n *shape"]:
        drawn = torch.rand(self.count, *shape, generator=self.generator)
        return drawn.to(self.groups.device)[self.groups]

    def upto(self, limit: float) -> Float[Tensor, " n"]:
        return self.uniform() * limit * self.strength

    def either_way(self, limit: float, *shape: int) -> Float[Tensor, " n *shape"]:
        return (2 * self.uniform(*shape) - 1) * limit * self.strength

    def happens(self, chance: float) -> Float[Tensor, " n"]:
        return (self.uniform() < chance * min(self.strength, 1.0)).to(torch.float32)

    def sometimes(self, amounts: Float[Tensor, " n *shape"]) -> Float[Tensor, " n *shape"]:
        """The amounts for groups that take the operation, 0 for the others."""
        taken = self.happens(self.chance)
        return amounts * taken.view(-1, *[1] * (amounts.ndim - 1))


def _move(
    images: Float[Tensor, "n c h w"], draws: _Draws, config: Config
) -> Float[Tensor, "n c h w"]:
    """The images turned, scaled and sheared. Edges are drawn out, which keeps black black."""
    matrices = turning(draws.sometimes(draws.either_way(config.rotation)))
    factor = draws.sometimes(draws.either_way(config.scale)).exp()
    shear = torch.eye(2, device=images.device).repeat(len(images), 1, 1)
    shear[:, 0, 1] = draws.sometimes(draws.either_way(config.shear))
    return warp(images, matrices @ shear / factor[:, None, None], "border")


def _defocus(
    images: Float[Tensor, "n c h w"], draws: _Draws, config: Config
) -> Float[Tensor, "n c h w"]:
    """The images with detail lost."""
    largest = config.blur * min(images.shape[2:])
    sigmas = draws.sometimes(draws.upto(largest))
    images = appearance.blur(images, sigmas, largest * config.strength)
    levels = (1 + draws.uniform() * len(FACTORS)).long() * draws.happens(config.coarse_chance)
    return appearance.coarsen(images, levels.long(), FACTORS)


def _recolour(
    images: Float[Tensor, "n c h w"], draws: _Draws, config: Config
) -> Float[Tensor, "n c h w"]:
    """The images with other tones and colours. Cut to [0, 1] on the way, as a camera would."""
    channels = images.shape[1]
    images = appearance.invert(images, draws.happens(config.invert_chance))
    if channels == 3:
        amounts = draws.sometimes(draws.either_way(config.saturation)).clamp(min=-1)
        grey = draws.happens(config.grey_chance) > 0
        images = appearance.saturate(images, amounts.masked_fill(grey, -1.0))
    gains = draws.sometimes(draws.either_way(config.gain, channels))
    offsets = draws.sometimes(draws.either_way(config.offset, channels))
    images = appearance.tint(images, gains, offsets).clamp(0, 1)
    images = appearance.contrast(images, draws.sometimes(draws.either_way(config.contrast)))
    images = appearance.gamma(images, draws.sometimes(draws.either_way(config.gamma)))
    return appearance.brighten(images, draws.sometimes(draws.either_way(config.brightness)))
