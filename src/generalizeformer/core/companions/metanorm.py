"""MetaNorm's network: the backbone, and beside every BatchNorm layer two small networks that infer its statistics.

Each image is normalised by a mean and a variance inferred from itself: one network looks at every position of the
feature map in the layer's source units and says how far the mean is from the source's; the other looks at the squared
distances from that mean and says by which factor the variance differs. Before training both say nothing: the
untrained network is the backbone.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from generalizeformer.core.companions._gaussian import Gaussian
from generalizeformer.core.companions._own_draws import own_draws
from generalizeformer.core.normalisers import (
    has_source_statistics,
    is_understood,
    rescaled,
    source_scale,
)
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.core.statistics import moments
from generalizeformer.errors import SlotError

HIDDEN = 128  # units of every inferring network
LIMIT = 5.0  # of the log factor of a variance: a floor above 0, and no infinity

Positions = Float[Tensor, "images positions channels"]
PerImage = Float[Tensor, "images channels"]


@dataclass
class Call:
    """What a run of the network tells its layers, and where they put what training asks for."""

    inferring: bool = True  # each image by its own statistics, or all by the layer's usual ones
    divergences: list[Tensor] | None = None  # of each layer, one number per channel


class Inference(nn.Module):
    """Looks at every position of an image and speaks once for it, in numbers per channel; 0 before it has learned."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.look, self.say = nn.Linear(channels, HIDDEN), nn.Linear(HIDDEN, channels)
        nn.init.zeros_(self.say.weight)
        nn.init.zeros_(self.say.bias)

    def forward(self, positions: Positions) -> PerImage:
        # The mean over positions may be taken before the last layer, which is linear.
        said: Tensor = self.say(self.look(positions).relu().mean(1))
        return said


class InferredNorm(nn.Module):
    """A BatchNorm layer that normalises every image by the statistics it infers from that image alone."""

    def __init__(self, name: str, layer: nn.Module, call: Call) -> None:
        super().__init__()
        self.name, self.layer, self.call = name, layer, call
        channels = len(source_scale(layer, name)[0])
        self.centre, self.spread = Inference(channels), Inference(channels)

    def forward(self, x: Tensor) -> Tensor:
        if not self.call.inferring:
            return self.layer(x)  # type: ignore[no-any-return]
        layer: Any = self.layer  # frozen variants have BatchNorm's attributes but not its class
        own = self.infer(x)
        if self.call.divergences is not None:
            apart = own.divergence_from(common(x.detach()), layer.eps)
            self.call.divergences.append(apart.mean(0))
        weight = (own.variance + layer.eps).rsqrt()
        weight = weight if layer.weight is None else weight * layer.weight
        bias = -own.mean * weight if layer.bias is None else layer.bias - own.mean * weight
        return rescaled(layer, x, weight, bias)

    def infer(self, x: Float[Tensor, "images channels *space"]) -> Gaussian:
        """Mean and variance of every image and channel, the source's moved by what the networks say."""
        mean, scale = source_scale(self.layer, self.name)
        variance: Tensor = self.layer.running_var  # type: ignore[assignment]
        positions = (x.unsqueeze(2) if x.dim() == 2 else x.flatten(2)).transpose(1, 2)
        positions = (positions - mean.to(x.dtype)) * scale.to(x.dtype)
        moved = self.centre(positions)
        factor = self.spread((positions - moved.to(x.dtype).unsqueeze(1)).square())
        # Kept in the precision of the layer's own statistics, whatever the networks ran in.
        moved, factor = moved.to(mean.dtype), factor.to(mean.dtype)
        return Gaussian(mean + moved / scale, variance * (LIMIT * (factor / LIMIT).tanh()).exp())


def common(x: Tensor) -> Gaussian:
    """The statistics of all images together, for every channel."""
    seen = moments(x)
    mean = seen.mean.mean(0)
    return Gaussian(mean, (seen.variance + (seen.mean - mean).square()).mean(0))


class MetaNorm(nn.Module):
    """The backbone's copy with inferred statistics in all BatchNorm layers."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.call = copy.deepcopy(backbone), Call()
        made: dict[int, nn.Module] = {
            id(layer): InferredNorm(name, layer, self.call)
            for name, layer in _batch_norms(self.backbone).items()
        }
        for parent in list(self.backbone.modules()):
            for child, layer in parent._modules.items():  # a layer used twice stays one layer
                parent._modules[child] = made.get(id(layer), layer)

    def forward(self, images: Images) -> Logits:
        """Each image by the statistics inferred from itself."""
        return self.backbone(images)  # type: ignore[no-any-return]

    def usual(self, images: Images) -> Logits:
        """All images by the usual BatchNorm: the batch's statistics in train mode, the running ones in eval mode."""
        self.call.inferring = False
        try:
            return self.forward(images)
        finally:
            self.call.inferring = True

    def compared(self, images: Images) -> tuple[Logits, Float[Tensor, ""]]:
        """`forward`, and how far the inferred statistics are from those of all these images together.

        The divergence is the mean over images and over all channels of all layers; no gradient goes through the
        statistics that it is measured from.
        """
        self.call.divergences = []
        try:
            logits = self.forward(images)
            return logits, torch.cat(self.call.divergences).mean()
        finally:
            self.call.divergences = None


def _batch_norms(backbone: nn.Module) -> dict[str, nn.Module]:
    found = {
        name: layer
        for name, layer in backbone.named_modules()
        if has_source_statistics(layer) and not isinstance(layer, _InstanceNorm)
    }
    if not found:
        raise SlotError(
            f"metanorm: {type(backbone).__name__} has no BatchNorm layer, so there are no statistics to infer; "
            "try t3a or generalizeformer"
        )
    for name, layer in found.items():
        if getattr(layer, "weight", None) is not None and not is_understood(layer):
            raise SlotError(
                f"metanorm: {name} is a {type(layer).__name__}, which does not compute what BatchNorm computes; "
                "try t3a"
            )
    return found


def build(backbone: nn.Module, classes: int) -> MetaNorm:
    """The untrained network around a copy of the backbone."""
    with own_draws("metanorm"):
        network = MetaNorm(backbone)
    return network.to(next(backbone.parameters()))
