"""Trees of image files, domain/class/image: found in folders, zips or saved tables. Decodes nothing."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from generalizeformer.data.storage import hub, zips
from generalizeformer.errors import DataError
from generalizeformer.imaging.files import ENDINGS

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
    others: tuple[str, ...] = ()

    def read(self, entry: Entry) -> bytes:
        """The bytes of one image. Any number of threads may read at once."""
        try:
            return entry.place.read()
        except OSError as error:
            raise DataError(
                f"{self.root}: {entry.path} cannot be read ({error.strerror or error}); "
                "it was there when the folder was searched, so check the disk and try again"
            ) from None

    def key(self) -> str:
        """A digest of all paths, sizes and stamps: another key, other images."""
        lines = (f"{entry.path}\t{entry.size}\t{entry.stamp}\n" for entry in self.entries)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

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

    parts: tuple[str, ...]
    size: int
    stamp: str
    place: Place

    @property
    def is_image(self) -> bool:
        """Whether its name ends like an image's."""
        return self.parts[-1].lower().endswith(ENDINGS)


def scan(root: Path | str, folders: Mapping[str, str] = {}) -> Tree:
    """The tree below a root; `folders` gives other names of domain folders and what they stand for."""
    found = _everything(str(root))
    images = _unwrapped([file for file in found if file.is_image])
    entries = [_entry(file, folders) for file in images if len(file.parts) == DEPTH]
    if not entries:
        raise DataError(_nothing(str(root), images))
    _refuse_repeats(str(root), entries)
    entries.sort(key=lambda entry: (entry.domain, entry.label, entry.name))
    rest = [f for f in found if not f.is_image] + [f for f in images if len(f.parts) != DEPTH]
    return Tree(str(root), tuple(entries), _worth_telling(rest))


def _everything(root: str) -> list[Found]:
    if hub.is_table(root):
        return [Found(*row) for row in hub.rows(root)]
    if not os.path.exists(root):
        raise DataError(f"{root}: no such folder or file; check the path")
    try:
        return list(_inside(root, ()))
    except OSError as error:
        raise DataError(
            f"{error.filename or root}: cannot be searched ({error.strerror}); "
            "check that you may read it"
        ) from None


def _inside(path: str, above: tuple[str, ...]) -> Iterator[Found]:
    """Every file of a folder or a zip, and of the zips inside a folder, as if they were unpacked."""
    if path.lower().endswith(".zip") and not os.path.isdir(path):
        for name, size, stamp, place in zips.members(path):
            yield Found((*above, *name.split("/")), size, stamp, place)
    elif not os.path.isdir(path):
        raise DataError(f"{path}: a file, but not a zip; name a folder or a zip of images")
    elif len(above) < DEEPEST:
        with os.scandir(path) as inside:
            for item in inside:
                yield from _item(item, above)


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


def _unwrapped(images: list[Found]) -> list[Found]:
    """The images without the one folder around all of them, if it keeps them from being in their places."""
    deep = [file for file in images if len(file.parts) == DEPTH + 1]
    outer = {file.parts[0] for file in deep}
    if len(outer) != 1 or any(len(file.parts) == DEPTH for file in images):
        return images
    inner = [Found(f.parts[1:], f.size, f.stamp, f.place) for f in deep]
    return inner + [file for file in images if len(file.parts) != DEPTH + 1]


def _entry(file: Found, folders: Mapping[str, str]) -> Entry:
    domain, label, name = file.parts
    return Entry(folders.get(domain, domain), label, name, file.size, file.stamp, file.place)


def _nothing(root: str, images: list[Found]) -> str:
    """What to say of a root without a single image at its place."""
    if not images:
        return f"{root}: no images in it; images end in {', '.join(ENDINGS)}"
    example = "/".join(images[0].parts)
    return (
        f"{root}: images lie at {example}, but domain/class/image is expected, such as "
        "photo/dog/1.jpg; put the class folders into a folder named after their domain"
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
