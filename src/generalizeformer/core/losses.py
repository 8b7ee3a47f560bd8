"""Unsupervised losses whose gradients tell φ how a target batch pulls at each layer.

Logits in, one value per image out: the group's loss is the mean of its images' values.
"""

from collections.abc import Callable
from math import log

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.shapes import Logits

ViewLogits = Float[Tensor, "views images classes"]
PerImage = Float[Tensor, " images"]
Loss = Callable[[ViewLogits], PerImage]


def entropy(logits: ViewLogits) -> PerImage:
    """H(p) of each image's prediction, averaged over its views (one, unless asked for more)."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean(0)


def pseudo_label(logits: ViewLogits) -> PerImage:
    """Cross-entropy to the model's own argmax; no confidence threshold, as in the authors' text."""
    return (
        F.nll_loss(
            logits.log_softmax(-1).flatten(0, 1), logits.argmax(-1).flatten(), reduction="none"
        )
        .reshape(logits.shape[:2])
        .mean(0)
    )


def marginal_entropy(logits: ViewLogits) -> PerImage:
    """MEMO: entropy of the prediction averaged over the views of one image, never over images."""
    log_p = logits.log_softmax(-1).logsumexp(0) - log(len(logits))
    log_p = log_p.clamp(min=torch.finfo(log_p.dtype).min)  # 0 · -inf would be nan
    return -(log_p.exp() * log_p).sum(-1)


LOSSES: dict[str, Loss] = {
    "entropy": entropy,
    "pseudo-label": pseudo_label,
    "memo": marginal_entropy,
}


def per_image_entropy(logits: Logits) -> PerImage:
    """H(p) of plain logits."""
    return entropy(logits.unsqueeze(0))
