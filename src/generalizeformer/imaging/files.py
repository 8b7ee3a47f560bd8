"""Image files → pixels. Every refusal names the file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.errors import ImageError
from generalizeformer.imaging.pixels import to_bytes, to_unit

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif")  # what torchvision decodes everywhere

# Images all the same, but not read here.
OTHER_ENDINGS = (".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif", ".jxl", ".jp2")

# What begins a part of a JPEG: not a byte of the scan, where FF is followed by 00, nor what stands alone in it.
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")
_SCAN, _END = b"\xda", b"\xd9"

How = Literal["squash", "crop"]


def read_image(path: Path, channels: int) -> UInt8[Tensor, "c h w"]:
    """The pixels of one file as people see it: upright, in 8 bits, as grey or colour whatever the file holds."""
    _check_channels(str(path), channels)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ImageError(
            f"{path}: not a file that can be read ({error.strerror}); check the path"
        ) from None
    return decode(content, str(path), channels)


def decode(content: bytes, name: str, channels: int) -> UInt8[Tensor, "c h w"]:
    """The pixels of one file that is in memory; its name is for refusals only."""
    from torchvision.io import ImageReadMode, decode_image

    _check_channels(name, channels)
    try:
        packed = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        image = decode_image(packed, mode=ImageReadMode.RGB, apply_exif_orientation=True)
    except (RuntimeError, ValueError) as error:
        reason = _reason(error) if content else "the file is empty"
        raise ImageError(
            f"{name}: not an image that can be read ({reason}); remove or replace it"
        ) from None
    if image.dim() != 3:
        raise ImageError(f"{name}: holds {len(image)} pictures; give files with one picture each")
    if image.dtype == torch.uint16:
        image = (image.int() >> 8).to(torch.uint8)
    return image if channels == 3 else _grey(image)


def complete(content: bytes) -> bool:
    """Whether a JPEG, PNG, WebP or GIF has its end. Decoders make up the rest of some that were cut short."""
    if content.startswith(b"\xff\xd8"):
        return _whole_jpeg(content)
    if content.startswith(b"\x89PNG"):
        return b"IEND\xaeB`\x82" in content
    if content.startswith(b"RIFF"):
        return len(content) >= 12 and len(content) >= 8 + int.from_bytes(content[4:8], "little")
    if content.startswith(b"GIF8"):
        return _whole_gif(content)
    return False


def _whole_jpeg(content: bytes) -> bool:
    """Whether the end comes after a scan. Small pictures inside its parts, and whatever lies behind it, have others."""
    place, scanned = 2, False
    while found := _MARKER.search(content, place):
        if found[1] == _END:
            return scanned
        scanned = scanned or found[1] == _SCAN
        length = int.from_bytes(content[found.end() : found.end() + 2], "big")
        place = found.end() + max(length, 2)
    return False


def _whole_gif(content: bytes) -> bool:
    """Whether the last block is followed by the end. Whatever lies behind that does not matter."""
    place = 13 + _colours(content[10:11])
    while (kind := content[place : place + 1]) in (b"!", b","):  # an extension, a picture
        place += 2 if kind == b"!" else 11 + _colours(content[place + 9 : place + 10])
        while place < len(content) and content[place]:  # pieces, each with its length before it
            place += 1 + content[place]
        place += 1
    return kind == b";"


def _colours(flags: bytes) -> int:
    """The bytes of the table of colours that a GIF's flags announce."""
    return 3 << (flags[0] % 8 + 1) if flags and flags[0] & 128 else 0


def _check_channels(name: str, channels: int) -> None:
    if channels not in (1, 3):
        raise ImageError(f"{name}: the model takes {channels} channels; files give 1 or 3")


def _grey(image: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "1 h w"]:
    """Luma. Decoders do this for some formats only, so it is done here for all of them."""
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    return (image * weights).sum(0, keepdim=True).round().to(torch.uint8)


def _reason(error: Exception) -> str:
    """The first line of what the decoder says, without the place in its source."""
    first = (str(error).strip().splitlines() or ["unknown format"])[0]
    return re.sub(r"^.*\.cpp:\d+, ", "", first).rstrip(". ")


def read_images(paths: Sequence[Path], channels: int, size: int) -> UInt8[Tensor, "n c size size"]:
    """The pixels of several files, brought to one size."""
    return torch.stack([resized(read_image(path, channels), size, "squash") for path in paths])


def resized(image: UInt8[Tensor, "c h w"], size: int, how: How) -> UInt8[Tensor, "c size size"]:
    """A square of the image: all of it squashed, or, as is usual for ImageNet, its centre with a margin cut off."""
    if how == "squash":
        return _resize(image, (size, size))
    height, width = image.shape[-2:]
    shorter = round(size * 256 / 224)
    whole = (
        (shorter, max(shorter, width * shorter // height))
        if height <= width
        else (max(shorter, height * shorter // width), shorter)
    )
    top, left = ((side - size) // 2 for side in whole)
    return _resize(image, whole)[:, top : top + size, left : left + size]


def _resize(image: UInt8[Tensor, "c h w"], sides: tuple[int, int]) -> UInt8[Tensor, "c h2 w2"]:
    if image.shape[-2:] == sides:
        return image
    unit = to_unit(image.unsqueeze(0))
    return to_bytes(F.interpolate(unit, sides, mode="bilinear", antialias=True))[0]
