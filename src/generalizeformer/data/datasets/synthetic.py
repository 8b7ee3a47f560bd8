"""A toy: smooth class patterns seen under another light in every domain. For tests and examples."""

import string
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.errors import DataError
from generalizeformer.imaging.pixels import to_bytes
from generalizeformer.seeds import derive

NOISE = 0.05  # standard deviation, with pixels in [0, 1]


@dataclass(frozen=True, kw_only=True)
class Config:
    """How much toy to make. Domains are named a, b, c and so on."""

    domains: int = 4
    classes: int = 5
    per_class: int = 12  # images of a class in a domain
    size: int = 16  # pixels on a side
    channels: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("domains", "classes", "per_class", "size", "channels"):
            value = getattr(self, field)
            if value < 1:
                raise DataError(f"synthetic: {field} is {value}; it must be at least 1")
        if self.domains > len(string.ascii_lowercase):
            raise DataError(
                f"synthetic: domains is {self.domains}; they are named a to z, so ask for "
                "26 at most"
            )


def build(config: Config) -> DomainDataset:
    """The toy dataset: what a class is does not change between domains, how it looks does."""
    patterns = _patterns(config)
    names = string.ascii_lowercase[: config.domains]
    domains = tuple(_domain(name, patterns, config) for name in names)
    return DomainDataset("synthetic", tuple(str(k) for k in range(config.classes)), domains)


def _patterns(config: Config) -> Float[Tensor, "classes 1 size size"]:
    """One smooth grey pattern per class, with mean 0 and deviation 1.

    Patterns carry no colour: colour belongs to the domains, so it cannot tell classes apart.
    """
    generator = _generator(config, "patterns")
    coarse = torch.randn(config.classes, 1, 4, 4, generator=generator)
    smooth = F.interpolate(coarse, size=config.size, mode="bicubic", align_corners=False)
    smooth = smooth - smooth.mean(dim=(2, 3), keepdim=True)
    return smooth / smooth.square().mean(dim=(2, 3), keepdim=True).sqrt().clamp(min=1e-6)


def _domain(name: str, patterns: Float[Tensor, "classes 1 size size"], config: Config) -> Domain:
    """Every class under the light of one domain: its contrast, colour gain and colour offset."""
    generator = _generator(config, "domain", name)
    contrast = 0.08 + 0.14 * torch.rand(1, generator=generator)
    gain = 0.6 + 0.8 * torch.rand(1, config.channels, 1, 1, generator=generator)
    offset = 0.3 * torch.rand(1, config.channels, 1, 1, generator=generator) - 0.15
    labels = torch.arange(config.classes).repeat_interleave(config.per_class)
    size = (len(labels), config.channels, config.size, config.size)
    amplitude = 0.8 + 0.4 * torch.rand(len(labels), 1, 1, 1, generator=generator)
    images = 0.5 + contrast * amplitude * gain * patterns[labels] + offset
    return Domain(name, to_bytes(images + NOISE * torch.randn(size, generator=generator)), labels)


def _generator(config: Config, *words: str) -> Generator:
    """A generator for one purpose, so that adding a domain leaves the others as they were."""
    return Generator().manual_seed(derive("synthetic", config.seed, *words))
