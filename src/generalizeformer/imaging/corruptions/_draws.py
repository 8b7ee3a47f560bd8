"""Random numbers of which every image has its own, so that its neighbours in a batch cannot change them."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor


class Draws:
    """One generator per image, on the images' device. Every draw has one part for each image."""

    def __init__(self, seeds: Int64[Tensor, " n"], device: torch.device) -> None:
        self.device = device
        self.generators = [Generator(device).manual_seed(seed) for seed in seeds.tolist()]

    def normal(self, *shape: int) -> Float[Tensor, " n *shape"]:
        """Numbers of mean 0 and deviation 1."""
        return self._each(lambda own: torch.randn(shape, generator=own, device=self.device))

    def uniform(self, low: float, high: float, *shape: int) -> Float[Tensor, " n *shape"]:
        """Numbers between two bounds."""
        drawn = self._each(lambda own: torch.rand(shape, generator=own, device=self.device))
        return low + (high - low) * drawn

    def whole(self, low: int, high: int, *shape: int) -> Int64[Tensor, " n *shape"]:
        """Whole numbers from `low` to `high`, both of them included."""
        return self._each(
            lambda own: torch.randint(low, high + 1, shape, generator=own, device=self.device)
        )

    def poisson(self, rates: Float[Tensor, " n *shape"]) -> Float[Tensor, " n *shape"]:
        """Counts with these means."""
        pairs = zip(rates, self.generators, strict=True)
        return torch.stack([torch.poisson(rate, generator=own) for rate, own in pairs])

    def _each(self, draw: Callable[[Generator], Tensor]) -> Tensor:
        return torch.stack([draw(own) for own in self.generators])
