"""What the source model sees in each group: features, statistics, and the pull of the loss on every slot (z_t, g_t)."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.core.grouped import GroupedBackbone
from generalizeformer.core.groups import Grouping
from generalizeformer.core.losses import Loss
from generalizeformer.core.prototypes import Prototypes
from generalizeformer.core.shapes import Features, Images, Logits, Params
from generalizeformer.core.statistics import Statistics, pool_all
from generalizeformer.core.views import views
from generalizeformer.errors import SlotError


@dataclass(frozen=True)
class Observation:
    """All that φ is told about the groups of one call. Detached: φ learns from it, not through it."""

    grouping: Grouping
    features: Features
    logits: Logits
    statistics: dict[str, Statistics]
    gradients: Params  # leading group axis
    images: Images  # for a guard or a second look; never an input of φ
    prototypes: Prototypes | None = None  # of the source, not of the groups

    def pooled(self, grouping: Grouping) -> "Observation":
        """What was seen of images one by one, as one would have seen it of groups of them.

        Losses are means over images, so their gradients are too.
        """
        return replace(
            self,
            grouping=grouping,
            statistics=pool_all(self.statistics, grouping),
            gradients={name: grouping.mean(g) for name, g in self.gradients.items()},
        )


def observe(
    network: GroupedBackbone,
    source: Params,
    images: Images,
    grouping: Grouping,
    loss: Loss,
    view_count: int = 1,
) -> Observation:
    """One forward with source parameters and statistics, one backward for the gradients of every group.

    Each group gets its own copy of the slots' parameters as leaves, so one backward gives all groups'
    gradients (Alg. 2, lines 3-4). Works inside the caller's no_grad and inference_mode.
    """
    with torch.inference_mode(False), torch.enable_grad():
        images = images.clone() if images.is_inference() else images
        count = len(grouping.sizes)
        leaves = {
            name: value.detach().expand(count, *value.shape).clone().requires_grad_()
            for name, value in source.items()
        }
        seen = network.run(images, grouping, leaves, watch=True)
        logits = seen.logits.unsqueeze(0)
        if view_count > 1:
            logits = _view_logits(network, images, grouping, leaves, view_count)
        # Groups do not share leaves, so the gradients of the sum are each group's own.
        total = grouping.mean(loss(logits)).sum()
        gradients = _gradients(total, list(leaves.values()))
    _check_used(dict(zip(leaves, gradients, strict=True)))
    return Observation(
        grouping,
        seen.features.detach(),
        seen.logits.detach(),
        seen.statistics,
        {n: g.detach() for n, g in zip(leaves, gradients, strict=True) if g is not None},
        images,
    )


def _view_logits(
    network: GroupedBackbone, images: Images, grouping: Grouping, leaves: Params, count: int
) -> Float[Tensor, "views images classes"]:
    seen = network.run(views(images, count).flatten(0, 1), grouping.repeat(count), leaves)
    return seen.logits.reshape(count, len(images), -1)


def _gradients(total: Tensor, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
    try:
        return torch.autograd.grad(total, leaves, allow_unused=True)
    except RuntimeError as error:
        if "torch.utils.checkpoint" not in str(error):
            raise
        raise SlotError(
            "the model computes parts of itself anew for gradients (torch.utils.checkpoint), when its groups' "
            "parameters are no longer there; switch checkpointing off in its forward"
        ) from error


def _check_used(gradients: dict[str, Tensor | None]) -> None:
    unused = [name for name, gradient in gradients.items() if gradient is None]
    if unused:
        raise SlotError(
            f"{unused[0]} has no effect on the logits ({len(unused)} such parameters): the model's forward never "
            "calls that layer, or hides it from gradients (checkpointing?); leave it out with Selection(exclude=...)"
        )
