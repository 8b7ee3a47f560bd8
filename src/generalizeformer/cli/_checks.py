"""What can be told of a training before its images are read."""

from pathlib import Path

from generalizeformer.errors import DataError, UserError

SMALLEST = 8  # pixels per side


def check_apart(folder: Path, images: Path | None) -> None:
    """Raises where a model would lie among the images that it learns from."""
    whole = folder.resolve()
    if images is not None and images.resolve() in (whole, *whole.parents):
        raise DataError(
            f"{folder}: is in {images}, where the images are; name a folder outside it, such as runs/mine"
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
