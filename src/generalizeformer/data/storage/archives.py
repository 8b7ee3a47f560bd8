"""Zip and tar archives, read through and looked over before anything of them is written."""

import gzip
import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Literal, NamedTuple

from generalizeformer.errors import DataError

Kind = Literal["file", "folder", "link", "device"]
Report = Callable[[int, int], None]  # files done, files in all

_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,  # what gzip raises for a wrong checksum
    RuntimeError,  # what zipfile raises for a password
    NotImplementedError,  # what zipfile raises for a compression that it does not know
)
_BLOCK = 1 << 20


class _Member(NamedTuple):
    name: str
    kind: Kind
    open: Callable[[], IO[bytes]]


def check_archive(path: Path, md5: str | None = None) -> int:
    """How many files an archive holds that is whole and stays in its folder; an error names the fault otherwise."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such archive; check the path")
    if md5 is not None and (got := _md5(path)) != md5:
        raise DataError(
            f"{path}: its md5 is {got}, and the published one is {md5}; delete the file and fetch it again"
        )
    members = _zip_members if _is_zip(path) else _tar_members
    try:
        found = [(member.name, member.kind) for member in members(path, whole=True)]
    except _BROKEN as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{path}: this archive is broken ({reason}); delete the file and fetch it again"
        ) from None
    for name, kind in found:
        _check_member(path, name, kind)
    return sum(kind == "file" for _, kind in found)


def unpack(
    path: Path,
    folder: Path,
    report: Report | None = None,
    choose: Callable[[Path], Path] | None = None,
) -> int:
    """The number of files unpacked into a folder that appears whole or not at all.

    `choose` finds, among what was unpacked, the folder that is meant: archives often wrap all in one more.
    """
    total = check_archive(path)
    require_new(folder)
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)  # what a killed run left
    try:
        _write_members(path, beside, total, report)
        move_into_place(choose(beside) if choose else beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return total


def require_new(folder: Path) -> None:
    """Nothing where a tree can be put at this place; an error where something lies there already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"{folder}: there is something here already, and it would be overwritten; name a new folder, or move it"
        )


def move_into_place(made: Path, folder: Path) -> None:
    """The made folder under its final name, in one step."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        folder.rmdir()  # an empty one
    os.replace(made, folder)


def _write_members(path: Path, into: Path, total: int, report: Report | None) -> None:
    into.mkdir(parents=True)
    members = _zip_members if _is_zip(path) else _tar_members
    done = 0
    for member in members(path, whole=False):
        place = into / member.name
        if member.kind == "folder":
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as source, place.open("wb") as target:
            shutil.copyfileobj(source, target, _BLOCK)
        done += 1
        if report:
            report(done, total)


def _check_member(path: Path, name: str, kind: Kind) -> None:
    if kind in ("link", "device"):
        raise DataError(
            f"{path}: holds the {kind} {name!r}, and only plain files are unpacked; do not use this archive"
        )
    # Both spellings, as a name that is harmless here may point outside on another system.
    pure = (PurePosixPath(name), PureWindowsPath(name))
    outside = any(each.is_absolute() or each.anchor or ".." in each.parts for each in pure)
    if outside or not name or "\0" in name:
        raise DataError(
            f"{path}: holds {name!r}, which points outside the folder it is unpacked to; do not use this archive"
        )


def _is_zip(path: Path) -> bool:
    """Whether it is a zip, by how the file begins: a name says little, and a web page comes with any name."""
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(b"PK"):
        return True
    if start.startswith(b"\x1f\x8b") or start[257:262] == b"ustar":
        return False
    raise DataError(
        f"{path}: neither a zip nor a tar archive, perhaps a web page that says why; look into it, "
        "delete it and fetch it again"
    )


def _zip_members(path: Path, *, whole: bool) -> Iterator[_Member]:
    """The entries of a zip; whole: after every one of them was read and its checksum compared."""
    with zipfile.ZipFile(path) as archive:
        if whole and (bad := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{bad} does not match its checksum")
        for info in archive.infolist():
            yield _Member(info.filename, _zip_kind(info), partial(archive.open, info))


def _zip_kind(info: zipfile.ZipInfo) -> Kind:
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "device"
    return "folder" if info.is_dir() else "file"


def _tar_members(path: Path, *, whole: bool) -> Iterator[_Member]:
    """The entries of a tar, packed by gzip or not; whole: then everything up to its end is read, too."""
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]
        with tarfile.TarFile(fileobj=stream) as archive:
            for info in archive:
                yield _Member(info.name, _tar_kind(info), partial(_open_tar, archive, info))
            if whole:
                _read_to_end(stream, archive.offset)


def _open_tar(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(info)
    if content is None:
        raise tarfile.ReadError(f"{info.name} has no content")
    return content


def _tar_kind(info: tarfile.TarInfo) -> Kind:
    if info.issym() or info.islnk():
        return "link"
    return "folder" if info.isdir() else "file" if info.isfile() else "device"


def _read_to_end(stream: IO[bytes], offset: int) -> None:
    """Reads what follows the last entry. A tar that was cut between two entries lacks the empty block there."""
    stream.seek(offset)
    if stream.read(512) != bytes(512):
        raise tarfile.ReadError("it ends early, or is damaged on the way")
    while stream.read(_BLOCK):
        pass


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
