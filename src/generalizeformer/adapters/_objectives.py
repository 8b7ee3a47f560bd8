"""What methods without labels go downhill on: one number from the logits of a batch."""

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.core.losses import per_image_entropy, pseudo_label
from generalizeformer.core.shapes import Logits

Scalar = Float[Tensor, ""]
INSIDE_LOG = 1e-5  # SHOT's, so that a class nobody is predicted as has a logarithm


def mean_entropy(logits: Logits) -> Scalar:
    """Each image should be sure of its class."""
    return per_image_entropy(logits).mean()


def confident_cross_entropy(logits: Logits, threshold: float) -> Scalar:
    """Cross-entropy to the argmax, averaged over the images whose highest probability is above the threshold.

    0, with gradients of 0, where there is no such image: a mean over nothing would be NaN.
    """
    confident = logits.softmax(1).amax(1) > threshold
    losses = torch.where(confident, pseudo_label(logits.unsqueeze(0)), 0)
    return losses.sum() / confident.sum().clamp(min=1)


def information(logits: Logits) -> Scalar:
    """Mean entropy less the entropy of the mean: each image sure of its class, and the classes different ones."""
    mean = logits.softmax(1).mean(0)
    return mean_entropy(logits) + (mean * (mean + INSIDE_LOG).log()).sum()
