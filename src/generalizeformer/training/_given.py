"""What callers from Python give, as domains: tensors or numpy's arrays, and clear words where they are neither."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from generalizeformer.data.domains import Domain
from generalizeformer.errors import DataError

USUAL = (1, 3, 4)  # channels of images


def as_domains(given: Any) -> tuple[Domain, ...]:
    """Domains of a dict of name → (pixels, labels)."""
    if not isinstance(given, Mapping):
        raise DataError(
            f"domains: got {type(given).__name__}; give a dict of name → (pixels, labels)"
        )
    return tuple(_domain(name, pair) for name, pair in given.items())


def _domain(name: Any, pair: Any) -> Domain:
    if not isinstance(name, str):
        raise DataError(f"domains: got the name {name!r}; names are text, such as {str(name)!r}")
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        got = type(pair).__name__ + (f" of {len(pair)}" if isinstance(pair, tuple | list) else "")
        raise DataError(f"domain {name!r}: got {got}; give a pair (pixels, labels)")
    pixels = _tensor(pair[0], f"domain {name!r}: pixels")
    _check_layout(name, pixels, isinstance(pair[0], np.ndarray))
    labels = _tensor(pair[1], f"domain {name!r}: labels")
    return Domain(name, pixels, _counted(labels))


def _tensor(value: Any, what: str) -> Tensor:
    """The value as a tensor; pixels and labels of numpy are shared where torch can share them."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise DataError(f"{what} are {type(value).__name__}; give a tensor or a numpy array")
    value = value.astype(value.dtype.newbyteorder("="), copy=False)  # files have either order
    shareable = value.flags.writeable and all(step >= 0 for step in value.strides)
    try:
        return torch.from_numpy(value if shareable else value.copy())
    except TypeError:
        raise DataError(f"{what} are an array of {value.dtype}; give numbers") from None


def _counted(labels: Tensor) -> Tensor:
    """Labels of any whole numbers as int64; others are left for the domain to refuse."""
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    return labels.long() if whole else labels


def _check_layout(name: str, pixels: Tensor, of_numpy: bool) -> None:
    """Raises where channels come last, as files and other libraries have them."""
    if pixels.ndim == 4 and pixels.shape[-1] in USUAL and pixels.shape[1] not in USUAL:
        turned = f"pixels.{'transpose' if of_numpy else 'permute'}(0, 3, 1, 2)"
        raise DataError(
            f"domain {name!r}: pixels are {tuple(pixels.shape)}, which looks like (n, h, w, c); use {turned}"
        )
