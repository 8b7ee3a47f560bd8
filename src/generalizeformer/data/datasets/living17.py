"""Living-17: kinds of animals, learned from some of their breeds and asked about others.

Santurkar, Tsipras and Madry, 2021 (BREEDS). The images are those of ImageNet. Both source domains
hold one breed of every kind, so that there is more than one domain to learn from.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NoReturn

from generalizeformer.data.datasets import _files
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.storage.cache import Report
from generalizeformer.data.storage.published import Published
from generalizeformer.data.storage.trees import Entry, Tree, everything
from generalizeformer.errors import DataError
from generalizeformer.imaging.files import How

Protocol = Literal["good", "rand", "bad"]
SOURCES, TARGET = ("source-0", "source-1"), "target"
HOW: How = "crop"  # how images become squares

# The names of the kinds; and for every split a row per kind: two breeds to learn from, two others.
_EMBEDDED: dict[str, Any] = json.loads(
    (resources.files(__package__) / "_living17" / "splits.json").read_text("utf-8")
)

PUBLISHED = Published(
    title="Living-17",
    citation="S. Santurkar, D. Tsipras and A. Madry, BREEDS: Benchmarks for Subpopulation Shift, ICLR 2021",
    licence="that of ImageNet: for non-commercial research",
    domains=(*SOURCES, TARGET),
    classes=tuple(_EMBEDDED["classes"]),
    notes=(
        "A backbone that was trained on ImageNet has seen the target breeds with their labels: its results leak.",
        "Three protocols: `good` (default) has similar breeds on both sides, `rand` is drawn, `bad` keeps them apart.",
        "Source images are ImageNet's training images, at most 1,300 of a breed; target images are its 50 "
        "validation images of each of 34 breeds, 1,700 in all.",
    ),
    layout="<root>/train/<wnid>/<name>.JPEG and <root>/val/<wnid>/<name>.JPEG",
    obtain="agree to the terms of ImageNet at https://image-net.org, fetch ILSVRC2012 by hand, and unpack train and "
    "val into one folder per class id",
)


@dataclass(frozen=True, kw_only=True)
class Config(_files.Config):
    """Where ImageNet is, and which breeds are learned from."""

    protocol: Protocol = "good"

    def __post_init__(self) -> None:
        super().__post_init__()
        known: dict[str, Any] = _EMBEDDED["splits"]
        if self.protocol not in known:
            raise DataError(
                f"living17: there is no protocol {self.protocol!r}; choose one of: {', '.join(known)}"
            )

    @property
    def seen(self) -> tuple[str, ...]:
        """The source domains."""
        return SOURCES

    @property
    def unseen(self) -> tuple[str, ...]:
        """The target domain."""
        return (TARGET,)


def breeds(protocol: Protocol) -> dict[tuple[str, str], tuple[str, ...]]:
    """The ImageNet ids of every (domain, class) of a protocol."""
    table = zip(PUBLISHED.classes, _EMBEDDED["splits"][protocol], strict=True)
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for label, (first, second, *targets) in table:
        found |= {(SOURCES[0], label): (first,), (SOURCES[1], label): (second,)}
        found[TARGET, label] = tuple(targets)
    return found


def build(config: Config, report: Report | None = None) -> DomainDataset:
    """The two source domains, then the target. The middle of each image is kept."""
    # A cache is found by its name, so that protocols do not take each other's place.
    name = "living17" if config.protocol == "good" else f"living17-{config.protocol}"
    made = _files.from_tree(name, PUBLISHED, tree(config), config, HOW, report)
    return replace(made, name="living17", kept=(TARGET,))


def sources(config: Config, report: Report | None = None) -> DomainDataset:
    """The training images of the source breeds: the first of every kind, and the second."""
    return build(config, report).only(SOURCES)


def targets(config: Config, report: Report | None = None) -> DomainDataset:
    """The validation images of the target breeds."""
    return build(config, report).only((TARGET,))


def tree(config: Config) -> Tree:
    """The files of the wanted breeds, as if they lay in folders of domains and kinds."""
    root = Path(_files.find_root("living17", config.root))
    folders = [
        (domain, label, root / ("val" if domain == TARGET else "train") / wnid)
        for (domain, label), ids in breeds(config.protocol).items()
        for wnid in ids
    ]
    missing = [folder for _, _, folder in folders if not folder.is_dir()]
    if missing:
        first = missing[0].relative_to(root).as_posix()
        raise DataError(
            f"living17: {root}: {len(missing)} of {len(folders)} ImageNet folders are missing, the first "
            f"is {first}; {PUBLISHED.obtain}"
        )
    entries = [entry for place in folders for entry in _images(*place)]
    entries.sort(key=lambda entry: (entry.domain, entry.label, entry.name))
    return Tree(str(root), tuple(entries))


def download(root: Path, report: Report | None = None) -> NoReturn:
    """Never: nobody may pass ImageNet on, so the error says what to do by hand."""
    raise DataError(
        f"living17: ImageNet cannot be fetched for you; {PUBLISHED.obtain}: {PUBLISHED.layout}"
    )


def _images(domain: str, label: str, folder: Path) -> Iterator[Entry]:
    for file in everything(str(folder)):
        if file.is_image and len(file.parts) == 1:
            yield Entry(domain, label, file.parts[0], file.size, file.stamp, file.place)
