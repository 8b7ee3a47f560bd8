"""Independent normal distributions, one per number of a tensor: what the inferring companions answer with."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Gaussian:
    """Means and variances of one shape."""

    mean: Float[Tensor, "*shape"]
    variance: Float[Tensor, "*shape"]

    def divergence_from(self, other: "Gaussian", floor: float) -> Float[Tensor, "*shape"]:
        """KL(self ‖ other) of every number, the floor added to both variances; shapes broadcast."""
        mine, theirs = self.variance + floor, other.variance + floor
        apart = (self.mean - other.mean).square()
        return 0.5 * (theirs.log() - mine.log() + (mine + apart) / theirs - 1)

    def sample(
        self, times: int, generator: torch.Generator
    ) -> Float[Tensor, " draws *shape"]:  # leading space: ruff takes two words for names
        """So many draws, through which gradients reach mean and variance."""
        noise = torch.randn(
            (times, *self.mean.shape),
            generator=generator,
            dtype=self.mean.dtype,
            device=self.mean.device,
        )
        return self.mean + self.variance.sqrt() * noise
