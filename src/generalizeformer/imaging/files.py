"""Image files → pixels. Every refusal names the file."""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.errors import DataError, ImageError
from generalizeformer.imaging.pixels import to_bytes, to_unit

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif")  # what torchvision decodes everywhere


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The named files, and every image below the named folders, in a stable order."""
    if not paths:
        raise DataError("no image files or folders were named; name at least one")
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += _inside(path)
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"{path}: no such file or folder; check the path")
    return found


def _inside(folder: Path) -> list[Path]:
    images = [p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file()]
    if not images:
        raise DataError(f"{folder}: no images in this folder; images end in {', '.join(ENDINGS)}")
    return sorted(images)


def read_image(path: Path, channels: int) -> UInt8[Tensor, "c h w"]:
    """The pixels of one file as people see it: upright, in 8 bits, as grey or colour whatever the file holds."""
    from torchvision.io import ImageReadMode, decode_image

    if channels not in (1, 3):
        raise ImageError(f"{path}: the model takes {channels} channels; files give 1 or 3")
    try:
        image = decode_image(str(path), mode=ImageReadMode.RGB, apply_exif_orientation=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise ImageError(
            f"{path}: not an image that can be read ({_reason(error)}); remove or replace it"
        ) from None
    if image.dim() != 3:
        raise ImageError(f"{path}: holds {len(image)} pictures; give files with one picture each")
    if image.dtype == torch.uint16:
        image = (image.int() >> 8).to(torch.uint8)
    return image if channels == 3 else _grey(image)


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
    return torch.stack([_resize(read_image(path, channels), size) for path in paths])


def _resize(image: UInt8[Tensor, "c h w"], size: int) -> UInt8[Tensor, "c size size"]:
    if image.shape[-2:] == (size, size):
        return image
    unit = to_unit(image.unsqueeze(0))
    return to_bytes(F.interpolate(unit, (size, size), mode="bilinear", antialias=True))[0]
