"""What can be told of a training before its images are read."""

from pathlib import Path

from generalizeformer.cli._terminal import check_folder
from generalizeformer.errors import DataError, UserError

SMALLEST = 8  # pixels per side


def check_out(folder: Path, images: Path | None = None) -> None:
    """Raises where a model cannot be written, would lie among its images, or replace files that no training wrote."""
    check_folder(folder)
    whole = folder.resolve()
    if images is not None and images.resolve() in (whole, *whole.parents):
        raise DataError(
            f"{folder}: is in {images}, where the images are; name a folder outside it, such as runs/mine"
        )
    theirs = [name for name in ("README.md", "config.json") if (folder / name).exists()]
    if theirs and not (folder / "training").is_dir():
        raise DataError(
            f"{folder}: holds a {theirs[0]} that no training wrote and that this one would replace; "
            "name a new folder"
        )


def check_backbone(name: str) -> None:
    """Raises where there is no backbone of that name: before all images are read, not after it."""
    import torch

    from generalizeformer.core.backbones import build_backbone

    try:
        with torch.device("meta"):  # no weights: how it is built is seen later
            build_backbone(name, 2)
    except Exception as error:  # not every network can be built without weights
        if isinstance(error, UserError):
            raise


def check_size(size: int | None) -> None:
    """Raises where images would be too small to show anything."""
    if size is not None and size < SMALLEST:
        raise DataError(f"image size: got {size}; it must be at least {SMALLEST}, usual are 224")
