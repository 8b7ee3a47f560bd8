"""What Rotated MNIST and Rotated Fashion-MNIST share: the protocols, the choice of images, how they are turned.

As Piratla et al., 2020 ("CSD") publish it, the same training images are shown at every source angle, and all
test images at every target angle. The choice is theirs to the image: numpy's legacy generator, which never
changes, seeded with 777, shuffles the training images, and the first are taken. They standardise before they
turn, so what comes into view is the mean grey; how far pixels are spread cancels out and is not needed.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from generalizeformer.data.datasets._files import find_root
from generalizeformer.data.datasets.digits import SIDE, SOURCES, TARGETS, Protocol
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.storage import idx
from generalizeformer.data.storage.published import Published
from generalizeformer.errors import DataError
from generalizeformer.imaging.pixels import to_bytes, to_unit
from generalizeformer.imaging.turning import How, turn

SEED = 777
ANGLES = tuple(sorted({angle for kind in (SOURCES, TARGETS) for a in kind.values() for angle in a}))
LAYOUT = "the four idx files in one folder, packed (.gz) or not, at the root or anywhere below it"
NOTES = (
    "The sources are the same training images at every angle, the targets all test images at every angle; "
    "`disjoint_targets` shows no test image twice.",
    "The rotation csd is the published one, after standardisation, so corners are mean grey; clean turns "
    "bilinearly on black.",
)

Report = Callable[[int, int], None]  # images done, images in all


@dataclass(frozen=True, kw_only=True)
class Base:
    """The upright images, as they were published."""

    name: str  # of the dataset they are turned into
    published: Published
    mean: float  # of the training pixels, in [0, 1]
    labels: Mapping[str, tuple[int, ...]]  # by half, how many images every class has
    md5: Mapping[str, str]  # by part, of what gzip packs: a copy packed again is as good


@dataclass(frozen=True, kw_only=True)
class RotatedConfig:
    """Which images at which angles, in degrees counter-clockwise; a domain is named by its angle."""

    base: ClassVar[Base]

    root: str | None = None  # None: the folder of the dataset's name below $GENERALIZEFORMER_DATA
    protocol: Protocol = "outer"
    source_angles: tuple[int, ...] | None = None  # None: those of the protocol
    target_angles: tuple[int, ...] | None = None  # None: those of the protocol
    rotation: How = "csd"
    per_angle: int = 2_000  # source images, the same at every angle
    disjoint_targets: bool = False  # every target angle has a share of the test images to itself

    def __post_init__(self) -> None:
        for field, known in (("protocol", tuple(SOURCES)), ("rotation", get_args(How))):
            if getattr(self, field) not in known:
                raise DataError(
                    f"{self.base.name}: there is no {field} {getattr(self, field)!r}; choose one "
                    f"of: {', '.join(known)}"
                )
        if self.per_angle < 1:
            raise DataError(
                f"{self.base.name}: per_angle is {self.per_angle}; it must be at least 1"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        return 1, SIDE, SIDE

    @property
    def seen(self) -> tuple[int, ...]:
        """The source angles."""
        return SOURCES[self.protocol] if self.source_angles is None else self.source_angles

    @property
    def unseen(self) -> tuple[int, ...]:
        """The target angles."""
        return TARGETS[self.protocol] if self.target_angles is None else self.target_angles


def build(config: RotatedConfig, report: Report | None = None) -> DomainDataset:
    """The source domains, then the target domains."""
    shared = [str(angle) for angle in config.seen if angle in config.unseen]
    if shared:
        raise DataError(
            f"{config.base.name}: {', '.join(shared)} is both a source and a target angle; build "
            "needs them apart, so change one, or call sources and targets by themselves"
        )
    made = _turned(config, _upright_sources(config) + _upright_targets(config), report)
    return replace(made, kept=tuple(map(str, config.unseen)))


def sources(config: RotatedConfig, report: Report | None = None) -> DomainDataset:
    """The chosen training images at every source angle."""
    return _turned(config, _upright_sources(config), report)


def targets(config: RotatedConfig, report: Report | None = None) -> DomainDataset:
    """The test images at every target angle. With source angles: unseen images, seen domains."""
    return _turned(config, _upright_targets(config), report)


def rotate(
    images: UInt8[Tensor, "n c h w"], degrees: int, rotation: How, mean: float
) -> UInt8[Tensor, "n c h w"]:
    """The images turned counter-clockwise. What comes into view is the mean for csd, and black for clean.

    Unlike in the published code, values are rounded to bytes, and what the spline over- or undershoots is cut off:
    on MNIST's test images at 15 to 45 degrees, 14 % of the pixels lose more than half a grey level and 7 % more
    than five, of 255, at most 85, in root mean square 4; on Fashion-MNIST's 9 %, 4 %, at most 90, and 3.
    """
    zero = mean if rotation == "csd" else 0.0
    return to_bytes(turn(to_unit(images) - zero, degrees, rotation) + zero)


def check_files(base: Base, root: Path) -> list[str]:
    """What is wrong with the idx files below a root, a sentence for each fault."""
    try:
        files = idx.find(root)
    except DataError as error:
        return [str(error)]
    faults = (_fault(base, part, files[part]) for part in idx.PARTS)
    return [fault for fault in faults if fault is not None]


def _turned(config: RotatedConfig, upright: list[Domain], report: Report | None) -> DomainDataset:
    domains: list[Domain] = []
    done, total = 0, sum(len(domain) for domain in upright)
    for domain in upright:
        images = rotate(domain.images, int(domain.name), config.rotation, config.base.mean)
        domains.append(Domain(domain.name, images, domain.labels))
        done += len(domain)
        if report is not None:
            report(done, total)
    return DomainDataset(config.base.name, config.base.published.classes, tuple(domains))


def _upright_sources(config: RotatedConfig) -> list[Domain]:
    """The chosen training images for every source angle, not yet turned. They are in the same order in each."""
    images, labels = _read(config, "train")
    if config.per_angle > len(labels):
        raise DataError(
            f"{config.base.name}: per_angle is {config.per_angle}, but there are {len(labels)} "
            "training images; ask for fewer"
        )
    chosen = torch.from_numpy(_shuffled(len(labels))[: config.per_angle])
    return [Domain(str(angle), images, labels[chosen], chosen) for angle in config.seen]


def _upright_targets(config: RotatedConfig) -> list[Domain]:
    """The test images for every target angle, not yet turned."""
    images, labels = _read(config, "t10k")
    whole = [Domain(str(angle), images, labels) for angle in config.unseen]
    if not config.disjoint_targets or not whole:
        return whole
    # Drawn, because the first half of MNIST's test images is easier than the second.
    shares = np.array_split(_shuffled(len(labels)), len(whole))
    pairs = zip(whole, shares, strict=True)
    return [domain.take(torch.from_numpy(np.sort(share))) for domain, share in pairs]


def _shuffled(count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.random.RandomState(SEED).permutation(count).astype(np.int64)


def _read(config: RotatedConfig, half: str) -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    name, obtain = config.base.name, config.base.published.obtain
    root = Path(find_root(name, config.root))
    try:
        return idx.read(idx.find(root), half)
    except DataError as error:
        raise DataError(
            f"{name}: {error}. The files: {obtain}, or run `generalizeformer data download {name}`"
        ) from None


def _fault(base: Base, part: str, path: Path) -> str | None:
    """What is wrong with one file, or None."""
    try:
        content = idx.unpacked(path)
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found == base.md5[part]:
            return None
        half, kind = part.split("-")
        array = idx.parse(content, idx.DIMENSIONS[kind], path)
    except DataError as error:
        return str(error)
    expected = base.labels[half]
    if len(array) != sum(expected):
        return f"{path}: {len(array)} {kind}; {sum(expected)} were published"
    if kind == "labels" and int(array.max()) >= len(expected):
        return f"{path}: labels up to {int(array.max())}; 0 to {len(expected) - 1} were published"
    if kind == "labels" and tuple(np.bincount(array, minlength=len(expected))) != expected:
        return f"{path}: classes have {np.bincount(array).tolist()} images; {list(expected)} were published"
    return f"{path}: the md5 of its content is {found}; {base.md5[part]} was published"
