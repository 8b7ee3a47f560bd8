"""Trees of image files, domain/class/image: found in folders, zips or saved tables. Decodes nothing."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from generalizeformer.data.storage import hub, zips
from generalizeformer.errors import DataError
from generalizeformer.imaging.files import ENDINGS
from generalizeformer.imaging.finding import unsearched

DEPTH = 3  # domain/class/image
DEEPEST = 6  # where a search ends, so that a link to a folder above itself cannot keep it going
NOT_TOLD = {"__MACOSX", "splits"}  # folders that come with archives and hold no images


class Place(Protocol):
    """Where the bytes of an image are."""

    def read(self) -> bytes: ...


@dataclass(frozen=True)
class FilePlace:
    """A file of its own."""

    path: str

    def __str__(self) -> str:
        return self.path

    @property
    def is_broken_link(self) -> bool:
        """Whether it points to what is not there."""
        return os.path.islink(self.path) and not os.path.exists(self.path)

    def read(self) -> bytes:
        """The whole file."""
        return Path(self.path).read_bytes()


@dataclass(frozen=True)
class Entry:
    """One image of a tree."""

    domain: str
    label: str
    name: str  # of the file inside the class folder, with its ending
    size: int  # bytes
    stamp: str  # changes when the file changes
    place: Place

    @property
    def path(self) -> str:
        """domain/class/name"""
        return f"{self.domain}/{self.label}/{self.name}"

    @property
    def stem(self) -> str:
        """domain/class/name without its ending, which is all that copies in another format share."""
        return os.path.splitext(self.path)[0]


@dataclass(frozen=True)
class Tree:
    """The images below a root, in the order of torchvision's ImageFolder, and what else lies there."""

    root: str
    entries: tuple[Entry, ...]
    others: tuple[str, ...] = ()  # paths of files; those of empty folders end in a slash

    def read(self, entry: Entry) -> bytes:
        """The bytes of one image. Any number of threads may read at once."""
        try:
            return entry.place.read()
        except OSError as error:
            if isinstance(entry.place, FilePlace) and entry.place.is_broken_link:
                raise DataError(
                    f"{self.root}: {entry.path} is a link to nothing; bring back what it points to, "
                    "or take the link away"
                ) from None
            raise DataError(
                f"{self.root}: {entry.path} cannot be read ({error.strerror or error}); "
                "it was there when the folder was searched, so check the disk and try again"
            ) from None

    def key(self) -> str:
        """A digest of all paths, sizes and stamps: another key, other images."""
        lines = (f"{entry.path}\t{entry.size}\t{entry.stamp}\n" for entry in self.entries)
        # Names of files need not be text; what is none is kept as it is.
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains, sorted."""
        return tuple(sorted(self._labels))

    def labels(self, domain: str) -> tuple[str, ...]:
        """The names of the classes of one domain, sorted."""
        return tuple(sorted(self._labels[domain]))

    @cached_property
    def _labels(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for entry in self.entries:
            found.setdefault(entry.domain, set()).add(entry.label)
        return found

    def counts(self) -> Counter[tuple[str, str]]:
        """How many images every (domain, class) has."""
        return Counter((entry.domain, entry.label) for entry in self.entries)


@dataclass(frozen=True)
class Found:
    """A file at any depth, before it is known what its folders mean."""

    parts: tuple[str, ...]  # the last is empty where nothing is in a folder
    size: int
    stamp: str
    place: Place

    @property
    def is_image(self) -> bool:
        """Whether its name ends like an image's."""
        return self.parts[-1].lower().endswith(ENDINGS)


def scan(root: Path | str, folders: Mapping[str, str] = {}) -> Tree:
    """The tree below a root; `folders` gives other names of domain folders and what they stand for."""
    found = everything(str(root))
    files = _unwrapped(found)
    placed = [file for file in files if file.is_image and len(file.parts) == DEPTH]
    if not placed:
        raise DataError(_nothing(str(root), [file for file in found if file.is_image]))
    entries = [_entry(file, folders) for file in placed]
    _refuse_repeats(str(root), entries)
    entries.sort(key=lambda entry: (entry.domain, entry.label, entry.name))
    rest = [file for file in files if not file.is_image or len(file.parts) != DEPTH]
    return Tree(str(root), tuple(entries), _worth_telling(rest))


def everything(root: str) -> list[Found]:
    """Every file below a root but the hidden ones, and every empty folder."""
    if hub.is_table(root):
        return [Found(*row) for row in hub.rows(root)]
    if not os.path.exists(root):
        raise DataError(f"{root}: no such folder or file; check the path")
    try:
        return list(_inside(root, ()))
    except OSError as error:
        raise DataError(unsearched(root, error)) from None


def _inside(path: str, above: tuple[str, ...]) -> Iterator[Found]:
    """Every file of a folder or a zip, and of the zips inside a folder, as if they were unpacked."""
    if path.lower().endswith(".zip") and not os.path.isdir(path):
        for name, size, stamp, place in zips.members(path):
            yield Found((*above, *name.split("/")), size, stamp, place)
    elif not os.path.isdir(path):
        raise DataError(f"{path}: a file, but not a zip; name a folder or a zip of images")
    elif len(above) < DEEPEST:
        with os.scandir(path) as inside:
            found = [file for item in inside for file in _item(item, above)]
        yield from found or [Found((*above, ""), 0, "", FilePlace(path))]


def _item(item: os.DirEntry[str], above: tuple[str, ...]) -> Iterator[Found]:
    if item.name.startswith("."):
        return
    if item.is_dir():
        yield from _inside(item.path, (*above, item.name))
    elif item.name.lower().endswith(".zip"):
        yield from _inside(item.path, above)
    else:
        about = item.stat() if item.is_file() else item.stat(follow_symlinks=False)
        place = FilePlace(item.path)
        yield Found((*above, item.name), about.st_size, str(about.st_mtime_ns), place)


def _unwrapped(found: list[Found]) -> list[Found]:
    """The files without the folders around all images, while those keep them from being in their places."""
    while True:
        depths = {len(file.parts) for file in found if file.is_image}
        nearest = min((depth for depth in depths if depth >= DEPTH), default=DEPTH)
        outer = {f.parts[0] for f in found if f.is_image and len(f.parts) == nearest}
        if nearest == DEPTH or len(outer) != 1:
            return found
        found = [
            replace(f, parts=f.parts[1:]) if len(f.parts) > 1 and f.parts[0] in outer else f
            for f in found
        ]


def _entry(file: Found, folders: Mapping[str, str]) -> Entry:
    domain, label, name = file.parts
    return Entry(folders.get(domain, domain), label, name, file.size, file.stamp, file.place)


def _nothing(root: str, images: list[Found]) -> str:
    """What to say of a root without a single image at its place."""
    if not images:
        return f"{root}: no images in it; images end in {', '.join(ENDINGS)}"
    example, place = "/".join(images[0].parts), images[0].place
    packed = isinstance(place, zips.ZipPlace)
    where = f"{example} of {os.path.basename(str(place))}" if packed else example
    inside = ", and that folder into the zip, whose own name is not read" if packed else ""
    return (
        f"{root}: images lie at {where}, but domain/class/image is expected, such as "
        f"photo/dog/1.jpg; put the class folders into a folder named after their domain{inside}"
    )


def _refuse_repeats(root: str, entries: Iterable[Entry]) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        other = seen.setdefault(entry.path, entry)
        if other is not entry:
            raise DataError(
                f"{root}: {entry.path} is there twice, in {other.place} and {entry.place}; "
                "keep the folder or the zip, not both"
            )


def _worth_telling(files: Iterable[Found]) -> tuple[str, ...]:
    paths = ("/".join(f.parts) for f in files if not NOT_TOLD.intersection(f.parts[:-1]))
    return tuple(sorted(path for path in paths if not path.rpartition("/")[2].startswith(".")))
