"""Rotated Fashion-MNIST: clothes at an angle per domain. Xiao et al., 2017; turned as in Piratla et al., 2020."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from generalizeformer.data.datasets import _rotated
from generalizeformer.data.datasets._rotated import Report
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.storage.published import Published

PUBLISHED = Published(
    title="Rotated Fashion-MNIST",
    citation="Xiao, Rasul & Vollgraf, 2017 (images); Piratla, Netrapalli & Sarawagi, 2020 (angles)",
    licence="MIT, Zalando SE",
    domains=tuple(str(angle) for angle in _rotated.ANGLES),
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    notes=_rotated.NOTES,
    layout=_rotated.LAYOUT,
    obtain="Debian's package dataset-fashion-mnist puts them into /usr/share/datasets/fashion-mnist",
)
COUNT = 70_000  # upright images
BASE = _rotated.Base(
    name="rotated_fashion_mnist",
    published=PUBLISHED,
    mean=0.2860,
    labels={"train": (6000,) * 10, "t10k": (1000,) * 10},
    md5={
        "train-images": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)


@dataclass(frozen=True, kw_only=True)
class Config(_rotated.RotatedConfig):
    """Which clothes at which angles."""

    base: ClassVar[_rotated.Base] = BASE

    per_angle: int = 10_000  # source images, the same at every angle


def build(config: Config, report: Report | None = None) -> DomainDataset:
    """The source domains, then the target domains."""
    return _rotated.build(config, report)


def sources(config: Config, report: Report | None = None) -> DomainDataset:
    """The same training images at every source angle."""
    return _rotated.sources(config, report)


def targets(config: Config, report: Report | None = None) -> DomainDataset:
    """The test images at every target angle."""
    return _rotated.targets(config, report)


def check_files(root: Path) -> list[str]:
    """What is wrong with Fashion-MNIST's files below a root, a sentence for each fault."""
    return _rotated.check_files(BASE, root)
