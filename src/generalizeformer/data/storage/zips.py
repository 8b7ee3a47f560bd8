"""Files inside zips, read where they are. Any number of threads may read at once: nothing is shared."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from generalizeformer.errors import DataError

HEADER = 30  # bytes of a member's own header, before its name
READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class ZipPlace:
    """A member of a zip."""

    path: str
    name: str
    offset: int
    packed: int  # bytes in the zip
    crc: int
    deflated: bool

    def __str__(self) -> str:
        return self.path

    def read(self) -> bytes:
        """The unpacked bytes, the same that were packed, or a refusal."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            header = file.read(HEADER)
            # The lengths in this header may differ from those in the zip's table of contents.
            file.seek(sum(struct.unpack("<HH", header[-4:])) if len(header) == HEADER else 0, 1)
            content = file.read(self.packed)
        try:
            content = zlib.decompress(content, -zlib.MAX_WBITS) if self.deflated else content
        except zlib.error:
            content = b""
        if zlib.crc32(content) != self.crc:
            raise DataError(f"{self.path}: {self.name} is damaged in the zip; get the zip again")
        return content


def members(path: str) -> Iterator[tuple[str, int, str, ZipPlace]]:
    """Name, size, stamp and place of every file in a zip, but the hidden ones."""
    try:
        with zipfile.ZipFile(path) as opened:
            infos = opened.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: not a zip that can be read ({error}); get or make it again"
        ) from None
    for info in infos:
        name = info.filename.replace("\\", "/")  # some programs of Windows write its own separator
        if not name.endswith("/") and not _is_hidden(name):
            _check(path, info, name)
            yield name, info.file_size, f"{info.CRC:08x}", _place(path, info)


def _place(path: str, info: zipfile.ZipInfo) -> ZipPlace:
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    offset, packed = info.header_offset, info.compress_size
    return ZipPlace(path, info.filename, offset, packed, info.CRC, deflated)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part != ".." for part in name.split("/"))


def _check(path: str, info: zipfile.ZipInfo, name: str) -> None:
    parts = name.split("/")
    if parts[0] == "" or parts[0].endswith(":") or ".." in parts:
        raise DataError(
            f"{path}: the entry {info.filename!r} points outside the zip; do not trust this file"
        )
    if info.flag_bits & 1:
        raise DataError(f"{path}: it has a password; make the zip again without one")
    if info.compress_type not in READABLE:
        raise DataError(
            f"{path}: {info.filename} is packed in an unusual way; make the zip again with deflate"
        )
