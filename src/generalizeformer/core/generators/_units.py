"""Units: parameters and gradients in proportion to their slot, so that no answer hangs on scale or rounding."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from generalizeformer.errors import UserError

Input = Literal["parameters", "features", "gradients"]
INPUTS: tuple[Input, ...] = ("parameters", "features", "gradients")

# Below this a gradient is rounding noise: dividing by less would blow the noise up into a signal.
GRADIENT_FLOOR = 1e-5
CLIP = 4.0


def check_inputs(inputs: tuple[Input, ...]) -> None:
    if not inputs or set(inputs) - set(INPUTS):
        raise UserError(f"inputs: got {inputs}; give one or more of {INPUTS}")


def rms(values: Float[Tensor, "*lead rows width"]) -> Float[Tensor, "*lead 1 1"]:
    """Root mean square over a slot's matrix."""
    return values.square().mean((-2, -1), keepdim=True).sqrt()


def relative(
    values: Float[Tensor, "*lead rows width"], floor: float
) -> tuple[Float[Tensor, "*lead rows width"], Float[Tensor, "*lead 1 1"]]:
    """A slot's matrix in units of its own size, clipped; and the logarithm of that size, about -1..1."""
    size = rms(values) + floor
    return (values / size).clamp(-CLIP, CLIP), size.log10() / 4


@dataclass(frozen=True)
class Owners:
    """Which slot each element (channel or row) belongs to, where those of many slots lie side by side."""

    ids: Int64[Tensor, " elements"]
    counts: Int64[Tensor, " slots"]

    @classmethod
    def of(cls: type["Owners"], counts: list[int], device: torch.device) -> "Owners":
        many = torch.tensor(counts, device=device)
        return cls(torch.repeat_interleave(many, output_size=sum(counts)), many)

    def mean(
        self, values: Float[Tensor, "groups elements width"]
    ) -> Float[Tensor, "groups slots width"]:
        """The mean over each slot's elements. Summed in single precision at least: thousands need their digits."""
        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        total = wide.new_zeros(len(values), len(self.counts), values.shape[2])
        mean = total.index_add(1, self.ids, wide) / self.counts.unsqueeze(1)
        return mean.to(values.dtype)

    def spread(
        self, values: Float[Tensor, "groups slots width"]
    ) -> Float[Tensor, "groups elements width"]:
        """To each element what its slot has."""
        return values.index_select(1, self.ids)


def onward(moves: Tensor, away: float) -> Tensor:
    """The moves, those in the other direction cut short. At no move, where φ begins, either way counts in full."""
    return torch.where(moves < 0, away * moves, moves)


def perturb(values: Tensor, noise: float) -> Tensor:
    """Descriptors with noise, so that φ cannot recognise a (model, domain) pair and recite its correction."""
    return values + noise * torch.randn_like(values) if noise else values
