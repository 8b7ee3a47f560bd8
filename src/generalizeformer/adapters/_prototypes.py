"""Classes told by the nearest supports, and supports by the prototypes of the classes: what TAST and TAST-BN share."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.shapes import Features, Logits


class Judgement(NamedTuple):
    """How images look to prototypes, and what their nearest supports say; under every head where there are heads."""

    logits: Float[Tensor, "*heads images classes"]  # of the images themselves, with gradients
    answers: Float[Tensor, "*heads images classes"]  # mean of the neighbours' probabilities
    targets: Float[Tensor, "*heads images classes"]  # share of the neighbours in each class

    def log_answers(self) -> Logits:
        """The answers' logarithms, over all heads; finite also where a large scale leaves a class nothing."""
        answers = self.answers.mean(0) if self.answers.dim() == 3 else self.answers
        return answers.clamp(min=torch.finfo(answers.dtype).tiny).log()

    def divergence(self) -> Float[Tensor, ""]:
        """KL from the targets, a mean over images and classes, as in the reference, and a sum over heads."""
        lost = F.kl_div(self.logits.log_softmax(-1), self.targets, reduction="none")
        return lost.mean((-2, -1)).sum()


def nearest(
    features: Features, supports: Float[Tensor, "supports feature"], count: int
) -> Bool[Tensor, "images supports"]:
    """Which `count` supports lie nearest to each image by cosine; all where there are fewer."""
    cosines = F.normalize(features, dim=1) @ F.normalize(supports, dim=1).T
    chosen = cosines.topk(min(count, len(supports)), sorted=False).indices
    return torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, chosen, True)


def judged(
    points: Float[Tensor, "*heads points width"],
    near: Bool[Tensor, "images supports"],
    labels: Int64[Tensor, " supports"],
    classes: int,
    scale: float,
) -> Judgement:
    """The judgement from the images and then the supports as points in one space, or in that of every head."""
    members = F.one_hot(labels, classes).to(points.dtype)
    supports = points[..., len(near) :, :]
    prototypes = (
        members / (members.sum(0) + 1e-12)
    ).mT @ supports  # 0 where a class has no support
    logits = scale * F.normalize(points, dim=-1) @ F.normalize(prototypes, dim=-1).mT
    said = logits[..., len(near) :, :].detach()
    share = near.to(points.dtype) / near.sum(1, keepdim=True)
    hard = F.one_hot(said.argmax(-1), classes).to(points.dtype)
    return Judgement(logits[..., : len(near), :], share @ said.softmax(-1), share @ hard)
