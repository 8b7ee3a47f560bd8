"""The idx files of MNIST and its successors: found below a folder, packed with gzip or not, and read."""

import gzip
import math
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from generalizeformer.errors import DataError

PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")
DIMENSIONS = {"images": 3, "labels": 1}
BYTES = 0x08  # what idx calls elements of one unsigned byte

_NAME = re.compile(r"(train|t10k)-(images|labels)[-.]idx[13][-.]ubyte(\.gz)?")


def find(root: Path) -> dict[str, Path]:
    """The four files, by part. They lie together in one folder, the root or any below it."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; it should hold the four idx files")
    folders = _folders(root)
    whole = [files for files in folders.values() if len(files) == len(PARTS)]
    if not whole:
        raise DataError(_missing(root, folders))
    if len(whole) > 1:
        places = ", ".join(sorted(str(files[PARTS[0]].parent) for files in whole))
        raise DataError(
            f"{root}: several folders hold idx files: {places}; give the one that is meant as root"
        )
    return whole[0]


def _folders(root: Path) -> dict[Path, dict[str, Path]]:
    """The idx files of every folder that has any, by part."""
    found: dict[Path, dict[str, Path]] = {}
    # In reverse, so that of a file and its packed copy the unpacked one, which sorts before, is taken.
    for path in sorted(root.rglob("*ubyte*"), reverse=True):
        match = _NAME.fullmatch(path.name)
        if match and path.is_file():
            found.setdefault(path.parent, {})[f"{match[1]}-{match[2]}"] = path
    return found


def _missing(root: Path, folders: Mapping[Path, Mapping[str, Path]]) -> str:
    if not folders:
        return (
            f"{root}: no idx files in it or below; they are named like train-images-idx3-ubyte.gz"
        )
    folder, files = max(folders.items(), key=lambda item: len(item[1]))
    lost = ", ".join(part for part in PARTS if part not in files)
    return f"{folder}: {lost} not there; all four idx files must lie in one folder"


def read(
    files: Mapping[str, Path], half: str
) -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    """The images and labels of one half, "train" or "t10k"."""
    images = read_array(files[f"{half}-images"], DIMENSIONS["images"])
    labels = read_array(files[f"{half}-labels"], DIMENSIONS["labels"])
    if len(images) != len(labels):
        raise DataError(
            f"{files[f'{half}-images']}: {len(images)} images, but {len(labels)} labels in "
            f"{files[f'{half}-labels'].name}; take both files from one source"
        )
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def read_array(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array in one file."""
    return parse(unpacked(path), dimensions, path)


def unpacked(path: Path) -> bytes:
    """The content of a file, without gzip around it. Names are not trusted: browsers unpack and keep the ending."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); fetch the file again") from None


def parse(content: bytes, dimensions: int, path: Path) -> npt.NDArray[np.uint8]:
    """The array that the content of an idx file describes; the path is for messages."""
    magic = bytes((0, 0, BYTES, dimensions))
    if content[:4] != magic:
        raise DataError(
            f"{path}: starts with {content[:4].hex() or 'nothing'}, but an idx file of bytes in "
            f"{dimensions} dimension(s) starts with {magic.hex()}; fetch the file again"
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{path}: ends inside its header; fetch the file again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path}: has {len(content) - start} bytes after its header, but {_times(shape)} need "
            f"{math.prod(shape)}; fetch the file again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(side) for side in shape)
