"""PACS: seven kinds of things as art, cartoons, photographs and sketches. Li et al., 2017."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import torch
from jaxtyping import Int64
from torch import Tensor

from generalizeformer.data.datasets import _files
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.storage.cache import Report
from generalizeformer.data.storage.published import Defect, Published
from generalizeformer.errors import DataError

ERROR = "sketch/dog/n02103406_4068-1"

PUBLISHED = Published(
    title="PACS",
    citation="Li, Yang, Song, Hospedales: Deeper, Broader and Artier Domain Generalization, ICCV 2017",
    licence="none stated; images of third parties, for research only",
    domains=("art_painting", "cartoon", "photo", "sketch"),
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    counts={
        "art_painting": (379, 255, 285, 184, 201, 295, 449),
        "cartoon": (389, 457, 346, 135, 324, 288, 405),
        "photo": (189, 202, 182, 186, 199, 280, 432),
        "sketch": (772, 740, 753, 608, 816, 80, 160),
    },
    defects=(
        Defect(
            files=(ERROR,),
            what="a drawing of the word ERROR; it is in the official training list, and "
            "drop_error leaves it out",
        ),
    ),
    notes=(
        "Photo and sketch share content: 2,864 sketches (73 %) were drawn from 434 photographs that "
        "are in the photo domain, so from one to the other a model may meet the same scene again.",
        "The originals are 227 x 227: JPEG for art, cartoon and photo, PNG for sketch. Copies that "
        "were encoded again have other bytes and endings; images are known by their names alone.",
        "Grey images: 4 in art_painting, 40 in cartoon, 6 in photo; every sketch is grey, kept as RGB.",
        "Classes are uneven: sketch has 80 houses and 816 horses.",
    ),
    layout="art_painting|cartoon|photo|sketch / dog|elephant|... / image",
    obtain="Unpack the archive from Google Drive (its folder is called kfold), or name hub:flwrlabs/pacs "
    "as root. Folders, or one zip for every domain, will do.",
    hub="flwrlabs/pacs",
    drive="1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd",
)


@dataclass(frozen=True, kw_only=True)
class Config(_files.Config):
    """Where the files are, how large images become, and whether a known fault is left out."""

    drop_error: bool = False  # leave out the drawing of the word ERROR


def build(config: Config, report: Report | None = None) -> DomainDataset:
    """The four domains in the order of their names."""
    dataset = _files.load("pacs", PUBLISHED, config, report=report)
    return _without_error(dataset) if config.drop_error else dataset


def _without_error(dataset: DomainDataset) -> DomainDataset:
    name, _, file = ERROR.partition("/")
    kept = [i for i, stem in enumerate(dataset[name].files or ()) if stem != file]
    sketches = dataset[name].take(torch.tensor(kept))
    return dataset.replaced(sketches if d.name == name else d for d in dataset.domains)


def official_validation(domain: Domain) -> Int64[Tensor, " n"]:
    """Which images of a domain its authors set aside for validation: about a tenth; the rest is to learn from."""
    official = _crossval()
    if domain.name not in official:
        raise DataError(
            f"pacs: there is no official list for the domain {domain.name!r}; there are lists for: "
            f"{', '.join(official)}"
        )
    place = {stem: index for index, stem in enumerate(domain.files or ())}
    # A domain may have been left with some of its classes only.
    classes = {stem.partition("/")[0] for stem in place}
    listed = [stem for stem in official[domain.name] if stem.partition("/")[0] in classes]
    missing = [stem for stem in listed or official[domain.name] if stem not in place]
    if missing:
        raise DataError(
            f"pacs: {len(missing)} images of the official validation list of {domain.name!r} are not "
            f"there, such as {missing[0]}; get the whole dataset, with its own file names, or "
            "divide it at random"
        )
    return torch.tensor(sorted(place[stem] for stem in listed))


@functools.cache
def _crossval() -> Mapping[str, tuple[str, ...]]:
    """By domain, the stems class/name of the official crossval lists."""
    text = resources.files(__package__) / "_pacs" / "crossval.txt"
    stems: dict[str, list[str]] = {domain: [] for domain in PUBLISHED.domains}
    for line in text.read_text("utf-8").splitlines():
        domain, _, stem = line.partition("/")
        stems[domain].append(stem)
    return {domain: tuple(found) for domain, found in stems.items()}
