"""Source statistics of norm layers that keep none of their own (LayerNorm, GroupNorm, …).

BatchNorm brings its running statistics, so its inputs are already described in source units. The others
normalise each image by itself; what a channel's mean and spread were on the source is measured once, with
`GeneralizeFormer.calibrate`, and kept here. Until then it is mean 0 and variance 1.
"""

import torch
from torch import Tensor, nn

from generalizeformer.core.normalisers import has_source_statistics
from generalizeformer.core.slots import Slots
from generalizeformer.core.statistics import Statistics


class Reference(nn.Module):
    """Mean and variance per channel of each such layer; part of the saved model."""

    def __init__(self, backbone: nn.Module, slots: Slots) -> None:
        super().__init__()
        layers = {name: backbone.get_submodule(name) for name in slots.norms}
        self.layers = [name for name, layer in layers.items() if not has_source_statistics(layer)]
        for name in self.layers:
            weight: Tensor = layers[name].weight  # type: ignore[assignment]
            blank = torch.stack([torch.zeros_like(weight), torch.ones_like(weight)]).detach()
            self.register_buffer(_key(name), blank)

    def relate(self, seen: dict[str, Statistics]) -> dict[str, Statistics]:
        """The statistics in source units."""
        return {name: self._relate(name, statistics) for name, statistics in seen.items()}

    def learn(self, seen: dict[str, Statistics]) -> None:
        """Takes the mean over groups of freshly seen source statistics (in the layers' own units).

        Layers over windows or patches have no row for every image: nobody sees those, so they stay as they are.
        """
        for name in (name for name in self.layers if name in seen):
            between = seen[name].mean.var(0, correction=0)
            values = torch.stack([seen[name].mean.mean(0), seen[name].variance.mean(0) + between])
            self.get_buffer(_key(name)).copy_(values)

    def _relate(self, name: str, seen: Statistics) -> Statistics:
        if name not in self.layers:
            return seen
        mean, variance = self.get_buffer(_key(name))
        return Statistics(
            (seen.mean - mean) / (variance + 1e-6).sqrt(), seen.variance / (variance + 1e-6)
        )


def _key(layer: str) -> str:
    return f"at/{layer}".replace(".", "/")  # a prefix, so that no layer's name can be a method's
