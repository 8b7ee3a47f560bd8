"""Rotated digits: 5,000 MNIST digits that come with the package, turned by an angle per domain.

LeCun et al., 1998 (MNIST); the angles are those of Piratla et al., 2020 ("outer") and of the
single-versus-multiple-targets experiment ("inner"). Unlike there, a target digit is never a
source digit at another angle, and digits turn as bytes on black, before any standardisation.
"""

import functools
import lzma
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.errors import DataError
from generalizeformer.imaging.pixels import to_bytes, to_unit, turning, warp
from generalizeformer.seeds import derive

CLASSES = tuple(str(digit) for digit in range(10))
COUNT, SIDE = 5_000, 28
PER_CLASS_SOURCE = 350  # of 500; the other 150 are only ever targets

Part = Literal["source", "target"]
Protocol = Literal["outer", "inner"]

# Degrees, counter-clockwise. "outer" asks for angles beyond the sources, "inner" for some between.
SOURCES: dict[str, tuple[int, ...]] = {"outer": (15, 30, 45, 60, 75), "inner": (0, 15, 75, 90)}
TARGETS: dict[str, tuple[int, ...]] = {"outer": (0, 90), "inner": (30, 45, 60)}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Which angles are sources and which are targets; a domain is named by its angle."""

    protocol: Protocol = "outer"
    source_angles: tuple[int, ...] | None = None  # None: those of the protocol
    target_angles: tuple[int, ...] | None = None  # None: those of the protocol

    def __post_init__(self) -> None:
        if self.protocol not in SOURCES:
            raise DataError(
                f"digits: there is no protocol {self.protocol!r}; choose one of: "
                f"{', '.join(SOURCES)}, or give source_angles and target_angles"
            )


def build(config: Config) -> DomainDataset:
    """The source domains, then the target domains."""
    source, target = sources(config), targets(config)
    shared = [name for name in source.names if name in target.names]
    if shared:
        raise DataError(
            f"digits: {', '.join(shared)} is both a source and a target angle; build needs them "
            "apart, so change one, or call sources and targets by themselves"
        )
    return DomainDataset("digits", CLASSES, source.domains + target.domains, kept=target.names)


def sources(config: Config) -> DomainDataset:
    """The source digits at every source angle."""
    angles = SOURCES[config.protocol] if config.source_angles is None else config.source_angles
    return _rotated("source", angles)


def targets(config: Config) -> DomainDataset:
    """The target digits at every target angle. With source angles: unseen digits, seen domains."""
    angles = TARGETS[config.protocol] if config.target_angles is None else config.target_angles
    return _rotated("target", angles)


def upright(part: Part) -> Domain:
    """The digits of one part as they were written: 3,500 for sources, 1,500 for targets."""
    images, labels = _read()
    taken = _division()[part]
    return Domain(part, images[taken], labels[taken])


def rotate(images: UInt8[Tensor, "n c h w"], degrees: int | float) -> UInt8[Tensor, "n c h w"]:
    """The images turned counter-clockwise about their centre; what comes into view is black."""
    angles = torch.full((len(images),), float(degrees), device=images.device)
    return to_bytes(warp(to_unit(images), turning(angles), "zeros"))


def _rotated(part: Part, angles: tuple[int, ...]) -> DomainDataset:
    digits = upright(part)
    domains = (Domain(str(a), rotate(digits.images, a), digits.labels) for a in angles)
    return DomainDataset("digits", CLASSES, tuple(domains))


@functools.cache
def _division() -> dict[Part, Int64[Tensor, " n"]]:
    """Which digits belong to which part: per class, the first by a hash of their number.

    A hash, unlike a random generator, divides alike under every version of every library.
    """
    labels = _read()[1].tolist()
    shuffled = sorted(range(COUNT), key=lambda index: derive("digits", "part", index))
    parts: dict[Part, list[int]] = {"source": [], "target": []}
    for digit in range(len(CLASSES)):
        mine = [index for index in shuffled if labels[index] == digit]
        parts["source"] += mine[:PER_CLASS_SOURCE]
        parts["target"] += mine[PER_CLASS_SOURCE:]
    return {part: torch.tensor(sorted(indices)) for part, indices in parts.items()}


@functools.cache
def _read() -> tuple[UInt8[Tensor, "n 1 28 28"], Int64[Tensor, " n"]]:
    """All digits and their labels. The file is xz over bytes: the labels, then the pixels."""
    packed = resources.files(__package__) / "_digits" / "digits.xz"
    content = np.frombuffer(lzma.decompress(packed.read_bytes()), dtype=np.uint8)
    labels = torch.from_numpy(content[:COUNT].astype(np.int64))
    return torch.from_numpy(content[COUNT:].copy()).view(COUNT, 1, SIDE, SIDE), labels
