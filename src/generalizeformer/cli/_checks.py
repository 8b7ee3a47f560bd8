"""What can be told of a training before its images are read."""

from pathlib import Path

from generalizeformer.errors import DataError

SMALLEST = 8  # pixels per side


def check_apart(folder: Path, images: Path | None) -> None:
    """Raises where a model would lie among the images that it learns from."""
    whole = folder.resolve()
    if images is not None and images.resolve() in (whole, *whole.parents):
        raise DataError(
            f"{folder}: is in {images}, where the images are; name a folder outside it, such as runs/mine"
        )


def check_size(size: int | None) -> None:
    """Raises where images would be too small to show anything."""
    if size is not None and size < SMALLEST:
        raise DataError(f"image size: got {size}; it must be at least {SMALLEST}, usual are 224")
