"""How far parameters were moved."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.core.shapes import Params
from generalizeformer.core.slots import Slots


@dataclass(frozen=True)
class Change:
    """How far each layer was moved for each group (the quantity of the paper's Fig. 3)."""

    layers: tuple[str, ...]
    distance: Float[Tensor, "groups layers"]  # L2
    relative: Float[Tensor, "groups layers"]  # L2 / L2 of the source parameters
    mean_absolute: Float[Tensor, "groups layers"]

    def __str__(self) -> str:
        """A line per layer: how far it was moved in percent of its parameters, in the mean over groups."""
        groups = len(self.relative)
        width = max(map(len, ("layer", *self.layers)))
        percent = (100 * self.relative.mean(0)).tolist()
        rows = [
            f"{name:<{width}}  {p:6.2f} %" for name, p in zip(self.layers, percent, strict=True)
        ]
        over = f", mean of {groups} groups" if groups > 1 else ""
        return "\n".join([f"{'layer':<{width}}  moved by{over}", *rows])


def between(slots: Slots, source: Params, target: Params) -> Change:
    """From the source's parameters to those of every group."""
    moved, size = [], []
    for slot in slots:
        moved.append((slot.rows(target) - slot.rows(source)).flatten(1))
        size.append(slot.rows(source).norm())
    distance = torch.stack([m.norm(dim=1) for m in moved], 1)
    absolute = torch.stack([m.abs().mean(1) for m in moved], 1)
    names = tuple(slot.layer for slot in slots)
    return Change(names, distance, distance / (torch.stack(size) + 1e-12), absolute)
