"""Source and target statistics mixed in every BatchNorm layer; nothing is learned.

You, Li and Zhao, "Test-time batch statistics calibration for covariate shift", 2021 (α-BN), after Schneider et
al., "Improving robustness against common corruptions by covariate shift adaptation", NeurIPS 2020, section 3.
Reference: github.com/mariodoebler/test-time-adaptation, classification/methods/bn.py.

BN mode: mixed; mean and variance are each (1 - w) · source + w · batch, with the batch's unbiased variance, as
in the reference. One pass: deeper layers see what shallower mixed ones give. Stateless: each group of images is
answered from its own statistics alone. Needs BatchNorm layers with running statistics.

Deviations. The weight is the batch's and is called `batch_weight`: "alpha" is the source's weight in the paper
and the batch's in the reference. The paper's additional training loss (Core) is not part of this method. A group
whose layer sees one value per channel is refused, as there is no unbiased variance of one value.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from generalizeformer.adapters._batch_norm import batch_norms
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.grouped import LAYERS, GroupedBackbone, Layers
from generalizeformer.core.groups import Grouping, grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.layers import Call, GroupedLayer
from generalizeformer.core.normalisers import along, check_understood, finish
from generalizeformer.core.shapes import Groups, Images, Logits
from generalizeformer.core.slots import Slot, Slots
from generalizeformer.core.statistics import moments, pool
from generalizeformer.errors import ImageError, SlotError, UserError


@dataclass(frozen=True, kw_only=True)
class Config:
    batch_weight: float = 0.1  # of the batch's statistics; 0 is the source model, 1 the batch alone

    def __post_init__(self) -> None:
        if not 0 <= self.batch_weight <= 1:
            raise UserError(
                f"alpha_bn: batch_weight is {self.batch_weight}; it is a share, from 0 (source) to 1 (batch)"
            )


GRID: tuple[dict[str, Any], ...] = tuple(
    {"batch_weight": weight} for weight in (0.1, 0.05, 0.2, 0.3, 0.5, 0.0)
)
"""What is searched on source data, the default first; 0 lets the search answer: leave the model as it is."""


class AlphaBN:
    """The backbone with mixed statistics in every BatchNorm layer."""

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.backbone = source.backbone
        layers: Layers = {**LAYERS, "norm": partial(MixedNorm, batch_weight=config.batch_weight)}
        slots = Slots(_slots(source.backbone), source.slots.classifier)
        self.network = GroupedBackbone(source.backbone, slots, layers)

    def __call__(self, images: Images, groups: Groups | None) -> Logits:
        check_images(images, self.backbone)
        return self.network.run(images, grouping(groups, len(images), images), {}).logits


class MixedNorm(GroupedLayer):
    """A BatchNorm layer whose statistics lie between the source's and those of each image's group."""

    def __init__(self, name: str, layer: nn.Module, call: Call, batch_weight: float) -> None:
        super().__init__(name, layer, call)
        self.batch_weight = batch_weight
        if getattr(layer, "weight", None) is not None:
            _check_understood(layer, name)

    def forward(self, x: Tensor) -> Tensor:
        grouping, positions = self._check(x), x[0, 0].numel()
        layer: Any = self.layer  # frozen variants have BatchNorm's attributes but not its class
        seen = pool(moments(x), grouping)
        count = grouping.sizes.to(seen.variance.dtype).unsqueeze(1) * positions
        unbiased = seen.variance * (count / (count - 1))
        mean = torch.lerp(layer.running_mean.to(seen.mean), seen.mean, self.batch_weight)
        variance = torch.lerp(layer.running_var.to(unbiased), unbiased, self.batch_weight)
        # One multiply-add over the feature map: statistics and affine are folded per group first.
        weight = (variance + layer.eps).rsqrt()
        weight = weight if layer.weight is None else weight * layer.weight
        bias = -mean * weight if layer.bias is None else layer.bias - mean * weight
        y = x * along(grouping.spread(weight), 1, x) + along(grouping.spread(bias), 1, x)
        return finish(layer, y.to(x.dtype))

    def _check(self, x: Tensor) -> Grouping:
        grouping = self.call.grouping
        assert grouping is not None
        if len(x) != len(grouping.ids):
            raise SlotError(
                f"alpha_bn: {self.name} saw {len(x)} rows for {len(grouping.ids)} images, so which row belongs to "
                "which group cannot be told; try t3a or generalizeformer"
            )
        if x[0, 0].numel() == 1 and grouping.sizes.min() < 2:
            raise ImageError(
                f"alpha_bn: {self.name} sees one value per channel and image, and one value has no variance; give "
                "at least 2 images per group"
            )
        return grouping


def _slots(backbone: nn.Module) -> tuple[Slot, ...]:
    """The BatchNorm layers as places to put a layer of ours; none of their parameters is generated."""
    layers = batch_norms(backbone)
    if not layers:
        raise SlotError(
            f"alpha_bn: {type(backbone).__name__} has no BatchNorm layer, so there are no statistics to mix; "
            "try t3a or generalizeformer"
        )
    return tuple(Slot(name, "norm", ()) for name in layers)


def _check_understood(layer: nn.Module, name: str) -> None:
    try:
        check_understood(layer, name)
    except SlotError:
        raise SlotError(
            f"alpha_bn: {name} is a {type(layer).__name__}, which does not compute what BatchNorm computes; "
            "try t3a"
        ) from None


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    return Stateless(AlphaBN(source, config))
