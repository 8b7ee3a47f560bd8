"""BatchNorm layers whose statistics lie between the source's and a group's, for the methods that mix the two."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from generalizeformer.adapters._batch_norm import batch_norms
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.grouped import LAYERS, GroupedBackbone, Layers
from generalizeformer.core.groups import Grouping, grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.layers import Call, GroupedLayer
from generalizeformer.core.normalisers import check_understood, rescaled
from generalizeformer.core.shapes import Groups, Images, Logits
from generalizeformer.core.slots import Slot, Slots
from generalizeformer.core.statistics import Statistics, moments, pool
from generalizeformer.errors import ImageError, SlotError

PerGroup = Float[Tensor, " groups"]


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How much of a group's own statistics, and of which kind."""

    method: str  # for its errors
    batch_weight: Callable[[PerGroup], PerGroup]  # from how many images each group has; 0 to 1
    unbiased: bool = True  # the group's variance
    gradients: bool = True  # whether they flow through the group's statistics
    remedy: str = "give at least 2 images per group"  # where a layer sees a single value


class MixedBackbone:
    """Images and groups in, logits out: the backbone with mixed statistics in every BatchNorm layer."""

    def __init__(self, source: GeneralizeFormer, mixing: Mixing) -> None:
        self.backbone = source.backbone
        layers: Layers = {**LAYERS, "norm": partial(MixedNorm, mixing=mixing)}
        names = require_batch_norms(source.backbone, mixing.method)
        # Places to put a layer of ours; none of their parameters is generated.
        slots = Slots(tuple(Slot(name, "norm", ()) for name in names), source.slots.classifier)
        self.network = GroupedBackbone(source.backbone, slots, layers)

    def __call__(self, images: Images, groups: Groups | None) -> Logits:
        check_images(images, self.backbone)
        return self.network.run(images, grouping(groups, len(images), images), {}).logits


class MixedNorm(GroupedLayer):
    """A BatchNorm layer with mixed statistics. In a network that knows no groups, all rows are one group."""

    def __init__(self, name: str, layer: nn.Module, call: Call, mixing: Mixing) -> None:
        super().__init__(name, layer, call)
        self.mixing = mixing
        require_understood(layer, name, mixing.method)

    def forward(self, x: Tensor) -> Tensor:
        grouping = self._grouping(x)
        layer: Any = self.layer  # frozen variants have BatchNorm's attributes but not its class
        seen = self._seen(x, grouping)
        share = self.mixing.batch_weight(grouping.sizes).to(seen.mean.dtype).unsqueeze(1)
        mean = torch.lerp(layer.running_mean.to(seen.mean), seen.mean, share)
        variance = torch.lerp(layer.running_var.to(seen.mean), seen.variance, share)
        # Statistics and affine are folded per group first.
        weight = (variance + layer.eps).rsqrt()
        weight = weight if layer.weight is None else weight * layer.weight
        bias = -mean * weight if layer.bias is None else layer.bias - mean * weight
        return rescaled(layer, x, grouping.spread(weight), grouping.spread(bias))

    def _seen(self, x: Tensor, grouping: Grouping) -> Statistics:
        """The groups' statistics, of the kind that is mixed."""
        x = x if self.mixing.gradients else x.detach()
        seen = moments(x)
        return (
            unbiased(seen, grouping, x[0, 0].numel())
            if self.mixing.unbiased
            else pool(seen, grouping)
        )

    def _grouping(self, x: Tensor) -> Grouping:
        found, method = self.call.grouping or grouping(None, len(x), x), self.mixing.method
        if len(x) != len(found.ids):
            raise SlotError(
                f"{method}: {self.name} saw {len(x)} rows for {len(found.ids)} images, so which row belongs to "
                "which group cannot be told; try t3a or generalizeformer"
            )
        if x[0, 0].numel() == 1 and found.sizes.min() < 2:
            raise ImageError(
                f"{method}: {self.name} sees one value per channel and image, and one value has no variance; "
                f"{self.mixing.remedy}"
            )
        return found


def unbiased(seen: Statistics, grouping: Grouping, positions: int) -> Statistics:
    """Mean and unbiased variance of each group, whose images have so many values in a channel."""
    biased = pool(seen, grouping)
    count = grouping.sizes.to(biased.variance.dtype).unsqueeze(1) * positions
    return Statistics(biased.mean, biased.variance * (count / (count - 1)))


def require_batch_norms(backbone: nn.Module, method: str) -> dict[str, nn.Module]:
    """Name → BatchNorm layer, of which there is at least one."""
    layers = batch_norms(backbone)
    if not layers:
        raise SlotError(
            f"{method}: {type(backbone).__name__} has no BatchNorm layer, so there are no statistics to mix; "
            "try t3a or generalizeformer"
        )
    return layers


def require_understood(layer: nn.Module, name: str, method: str) -> None:
    """Refuses what only looks like BatchNorm. A layer without γ cannot be tried out."""
    if getattr(layer, "weight", None) is None:
        return
    try:
        check_understood(layer, name)
    except SlotError:
        raise SlotError(
            f"{method}: {name} is a {type(layer).__name__}, which does not compute what BatchNorm computes; "
            "try t3a"
        ) from None
