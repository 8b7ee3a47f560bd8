"""Where a training writes and where it computes: told before hours of work, not after them.

Loads neither torch nor a model until it must, because the command line asks here first.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from generalizeformer.errors import DataError, UserError

if TYPE_CHECKING:
    import torch
    from lightning_fabric import Fabric

Device = Literal["auto", "cpu", "cuda", "mps"]
DEVICES = ("auto", "cpu", "cuda", "mps")
Precision = Literal["32-true", "bf16-mixed"]


def check_folder(path: Path) -> None:
    """Raises where results cannot be written into this folder: before the work, not after it."""
    nearest = next(p for p in (path, *path.parents) if p.exists())
    if not nearest.is_dir():
        raise DataError(f"{nearest}: is a file, but results need a folder; name another")


def check_out(folder: Path) -> None:
    """Raises where a model cannot be written, or would replace files that are not a model's."""
    from generalizeformer.core.artefact import foreign

    check_folder(folder)
    theirs = foreign(folder)
    if theirs and not (folder / "training").is_dir():
        raise DataError(
            f"{folder}: holds a {theirs[0]} that no training wrote and that this one would replace; "
            "name a new folder"
        )


def pick_device(name: Device) -> "torch.device":
    """The device of that name; auto is a GPU where there is one."""
    import torch

    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name == "auto":
        name = "cuda" if there["cuda"] else "cpu"
    if not there[name]:
        raise UserError(
            f"device: {name} was asked for, but there is no usable one; use cpu or auto"
        )
    return torch.device(name)


def fabric(device: Device, devices: int = 1, precision: Precision = "32-true") -> "Fabric":
    """Where and how to compute; launches the other processes where there are several."""
    from lightning_fabric import Fabric

    if device not in DEVICES:
        raise UserError(f"device: got {device!r}; it must be one of {', '.join(DEVICES)}")
    if devices < 1:
        raise UserError(f"devices: got {devices}; it must be at least 1")
    if device != "auto":
        pick_device(device)
    try:
        made = Fabric(accelerator=device, devices=devices, precision=precision)
        made.launch()
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"device: {devices} of {device} cannot be used ({error})") from None
    return made
