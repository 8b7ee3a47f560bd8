"""Trees of image files → one mapped file of pixels, decoded once.

A cache is filled in blocks. A journal names the blocks that are done, so a killed process loses the
blocks it was at and nothing else. The pixels appear by a rename, and the index, which says for which
files they stand, comes last: a cache without a fitting index is no cache.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from generalizeformer.atomic import alone, write_text
from generalizeformer.data.storage import hub
from generalizeformer.data.storage.trees import Entry, Tree
from generalizeformer.errors import DataError, ImageError
from generalizeformer.imaging.files import How, decode, resized

VARIABLE = "GENERALIZEFORMER_CACHE"
BLOCK = 64  # images
FORMAT = 1  # another number makes every cache be done again

Report = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What becomes of the images of a dataset."""

    name: str
    size: int = 224
    how: How = "squash"
    channels: int = 3


def default_folder() -> Path:
    """Where caches are kept when nobody says otherwise."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "generalizeformer"


def location(tree: Tree, recipe: Recipe, folder: Path | str | None = None) -> Path:
    """The folder of one cache: one for every root and recipe."""
    is_remote = tree.root.startswith(hub.PREFIX)
    root = tree.root if is_remote else os.path.realpath(tree.root)
    digest = hashlib.sha256(root.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    name = f"{recipe.name}-{recipe.size}-{recipe.how}-{recipe.channels}-{digest}"
    return Path(folder or default_folder()) / name


def is_ready(tree: Tree, recipe: Recipe, folder: Path | str | None = None) -> bool:
    """Whether `prepare` would give the images at once."""
    return _Cache(tree, recipe, location(tree, recipe, folder)).is_ready()


def prepare(
    tree: Tree,
    recipe: Recipe,
    folder: Path | str | None = None,
    report: Report | None = None,
) -> UInt8[Tensor, "n c size size"]:
    """The images of a tree in its order, mapped: nothing is read before it is used, and nobody can change it."""
    cache = _Cache(tree, recipe, location(tree, recipe, folder))
    if not cache.is_ready():
        try:
            with alone(cache.place):
                if not cache.is_ready():  # who held the lock may have done the work
                    cache.fill(report)
        except OSError as error:
            raise DataError(
                f"{cache.place}: cannot write the decoded images ({error.strerror or error}); they "
                f"take {_amount(cache.bytes)}, so make room or set {VARIABLE} to another folder"
            ) from None
    return cache.mapped()


class _Cache:
    """The files of one cache."""

    def __init__(self, tree: Tree, recipe: Recipe, place: Path) -> None:
        self.tree, self.recipe, self.place = tree, recipe, place
        self.pixels, self.index = place / "images.uint8", place / "index.json"
        self.partial, self.journal = place / "images.partial", place / "journal.txt"
        self.each = recipe.channels * recipe.size**2
        self.bytes = len(tree.entries) * self.each
        self.key = f"{FORMAT} {BLOCK} {tree.key()}"

    def is_ready(self) -> bool:
        """Whether the index is about these files and the pixels are all there."""
        try:
            index = json.loads(self.index.read_text("utf-8"))
            return index["key"] == self.key and self.pixels.stat().st_size == self.bytes
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def mapped(self) -> UInt8[Tensor, "n c size size"]:
        """The pixels. The mapping is private: what is written into it stays in this process."""
        size, channels = self.recipe.size, self.recipe.channels
        flat = torch.from_file(str(self.pixels), False, self.bytes, dtype=torch.uint8)
        return flat.view(-1, channels, size, size)

    def fill(self, report: Report | None) -> None:
        """Do what is left to do, then put everything in its place."""
        starts = range(0, len(self.tree.entries), BLOCK)
        done = (self._begun() or self._begin()).intersection(starts)
        left = [start for start in starts if start not in done]
        count = sum(len(self.tree.entries[start : start + BLOCK]) for start in done)
        with self.journal.open("a") as journal:
            for start, written in self._blocks(left):
                journal.write(f"{start}\n")
                journal.flush()
                count += written
                if report:
                    report(count, len(self.tree.entries))
        self._finish()

    def _blocks(self, starts: list[int]) -> Iterator[tuple[int, int]]:
        """Start and length of every block, once it is on disk."""
        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            yield from zip(starts, pool.map(self._write, starts), strict=True)
        finally:
            pool.shutdown(cancel_futures=True)

    def _write(self, start: int) -> int:
        entries = self.tree.entries[start : start + BLOCK]
        images = torch.stack([self._image(entry) for entry in entries])
        with self.partial.open("r+b") as file:
            file.seek(start * self.each)
            file.write(images.numpy().data)
            file.flush()
            os.fsync(file.fileno())
        return len(entries)

    def _image(self, entry: Entry) -> UInt8[Tensor, "c size size"]:
        content = self.tree.read(entry)
        try:
            image = decode(content, entry.path, self.recipe.channels)
        except ImageError as error:
            raise ImageError(
                f"{self.tree.root}: {error}; `generalizeformer data check` finds all such files"
            ) from None
        return resized(image, self.recipe.size, self.recipe.how)

    def _begun(self) -> set[int]:
        """The blocks that an earlier process has done for the same files."""
        try:
            key, *lines = self.journal.read_text("utf-8").split("\n")
            if key != self.key or self.partial.stat().st_size != self.bytes:
                return set()
        except (OSError, UnicodeDecodeError):
            return set()
        whole = lines[:-1]  # what follows the last line end was cut short
        # The cut line goes, or the next line would be written behind it.
        write_text(self.journal, "".join(f"{line}\n" for line in [key, *whole]))
        return {int(line) for line in whole if line.isdecimal()}

    def _begin(self) -> set[int]:
        self.journal.unlink(missing_ok=True)
        self.partial.unlink(missing_ok=True)  # its room is free again before room is asked for
        if self.bytes > shutil.disk_usage(self.place).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            with self.partial.open("wb") as file:
                _reserve(file.fileno(), self.bytes)
        except BaseException:  # what was taken until then would fill the disk for nothing
            self.partial.unlink(missing_ok=True)
            raise
        write_text(self.journal, f"{self.key}\n")
        return set()

    def _finish(self) -> None:
        # The old index goes before the old pixels, so that it never stands for the new ones.
        self.index.unlink(missing_ok=True)
        os.replace(self.partial, self.pixels)
        about = {"key": self.key, "root": self.tree.root, "images": len(self.tree.entries)}
        write_text(self.index, json.dumps(about, indent=1) + "\n")
        self.journal.unlink(missing_ok=True)


def _amount(size: int) -> str:
    """Bytes in words."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _reserve(file: int, size: int) -> None:
    """Take the room now: a disk that is too small is told at once, not after an hour."""
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(file, size)
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(file, size)
