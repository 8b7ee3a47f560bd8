"""Image files → pixels. Every refusal names the file."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.data.pixels import to_bytes, to_unit
from generalizeformer.errors import DataError, ImageError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".avif", ".heic", ".bmp")


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The named files, and every image below the named folders, in a stable order."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in ENDINGS)
            if not inside:
                raise DataError(
                    f"{path}: no images in this folder; images end in {', '.join(ENDINGS)}"
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"{path}: no such file or folder")
    return found


def read_image(path: Path, channels: int) -> UInt8[Tensor, "c h w"]:
    """The pixels of one file, as grey or colour whatever the file holds."""
    from torchvision.io import ImageReadMode, decode_image

    if channels not in (1, 3):
        raise ImageError(f"{path}: the model takes {channels} channels; files give 1 or 3")
    mode = ImageReadMode.GRAY if channels == 1 else ImageReadMode.RGB
    try:
        image: Tensor = decode_image(str(path), mode=mode)
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "unknown format"
        raise ImageError(
            f"{path}: not an image that can be read ({reason}); remove or replace it"
        ) from None
    if image.dim() != 3:
        raise ImageError(f"{path}: holds {len(image)} pictures; give files with one picture each")
    return image


def read_images(paths: Sequence[Path], channels: int, size: int) -> UInt8[Tensor, "n c size size"]:
    """The pixels of several files, brought to one size."""
    return torch.stack([_resize(read_image(path, channels), size) for path in paths])


def _resize(image: UInt8[Tensor, "c h w"], size: int) -> UInt8[Tensor, "c size size"]:
    if image.shape[-2:] == (size, size):
        return image
    unit = to_unit(image.unsqueeze(0))
    return to_bytes(F.interpolate(unit, (size, size), mode="bilinear", antialias=True))[0]
