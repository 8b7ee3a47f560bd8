"""Datasets of image files: what all of them do between a folder and a `DomainDataset`."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from generalizeformer.data.datasets import VARIABLE
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.storage import cache
from generalizeformer.data.storage.published import Published
from generalizeformer.data.storage.trees import Tree, scan
from generalizeformer.errors import DataError
from generalizeformer.imaging.files import How


@dataclass(frozen=True, kw_only=True)
class Config:
    """Where the files are and how large images become."""

    root: str | None = None  # None: the folder of the dataset's name below $GENERALIZEFORMER_DATA
    size: int = 224  # pixels, of both sides
    cache: str | None = None  # the folder of decoded images; None: $GENERALIZEFORMER_CACHE

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"size is {self.size}; images need at least 1 pixel, usual are 224")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        return 3, self.size, self.size


def load(
    name: str,
    published: Published | None,
    config: Config,
    how: How = "squash",
    report: cache.Report | None = None,
) -> DomainDataset:
    """The dataset below its root, checked against what is published and decoded once."""
    tree = scan(find_root(name, config.root), published.folders if published else {})
    return from_tree(name, published, tree, config, how, report)


def find_root(name: str, root: str | None) -> str:
    """Where the files of a dataset are: as told, or below the folder that holds all datasets."""
    if root is not None:
        return root
    below = os.environ.get(VARIABLE)
    if below and (Path(below) / name).exists():
        return str(Path(below) / name)
    looked = f"there is no {Path(below) / name}" if below else f"{VARIABLE} is not set"
    raise DataError(
        f"{name}: no root was given and {looked}; give --root, or set {VARIABLE} to the folder that "
        f"holds {name}; `generalizeformer data info {name}` says how to get the files"
    )


def from_tree(
    name: str,
    published: Published | None,
    tree: Tree,
    config: Config,
    how: How = "squash",
    report: cache.Report | None = None,
) -> DomainDataset:
    """The dataset of a tree: one domain for every domain folder, pixels mapped from the cache."""
    check_names(name, published, tree)
    if published:
        domains, classes = published.domains, published.classes
    else:
        domains, classes = tree.domains, tree.labels(tree.domains[0])
    recipe = cache.Recipe(name=name, size=config.size, how=how)
    pixels = cache.prepare(tree, recipe, config.cache, report)
    made = (_domain(tree, pixels, domain, classes) for domain in domains)
    return DomainDataset(name, classes, tuple(made))


def _domain(
    tree: Tree, pixels: UInt8[Tensor, "n c h w"], name: str, classes: tuple[str, ...]
) -> Domain:
    """One domain. A tree is sorted by domains, so its images follow each other and need no copy."""
    places = [place for place, entry in enumerate(tree.entries) if entry.domain == name]
    mine = tree.entries[places[0] : places[-1] + 1]
    number = {label: index for index, label in enumerate(classes)}
    labels = torch.tensor([number[entry.label] for entry in mine])
    files = tuple(entry.stem.removeprefix(f"{name}/") for entry in mine)
    return Domain(name, pixels[places[0] : places[-1] + 1], labels, None, files)


def check_names(name: str, published: Published | None, tree: Tree) -> None:
    """Refuse a tree whose domains do not share their classes, or whose names are not the published ones.

    A missing class folder would otherwise shift the labels of one domain against those of the others.
    """
    where = f"{name}: {tree.root}"
    if published:
        _same(f"{where} has", "domain", tree.domains, published.domains)
    every = sorted({label for domain in tree.domains for label in tree.labels(domain)})
    for domain in tree.domains:
        wanted = published.classes if published else every
        if published and published.counts:  # a class may be published without images in a domain
            counts = published.counts[domain]
            empty = {label for label, n in zip(wanted, counts, strict=True) if not n}
            wanted = tuple(sorted({*wanted} - (empty - {*tree.labels(domain)})))
        _same(f"{where}: domain {domain!r} has", "class", tree.labels(domain), wanted)


def _same(where: str, kind: str, got: tuple[str, ...], wanted: tuple[str, ...] | list[str]) -> None:
    missing = [name for name in wanted if name not in got]
    extra = [name for name in got if name not in wanted]
    if missing:
        raise DataError(
            f"{where} no {kind} {', '.join(map(repr, missing))}; all of these must be there: "
            f"{', '.join(wanted)}"
        )
    if extra:
        raise DataError(
            f"{where} a {kind} {', '.join(map(repr, extra))} that does not belong there; "
            f"keep only: {', '.join(wanted)}"
        )
