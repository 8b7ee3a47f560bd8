"""The source's probabilities of a batch, drawn towards those of similar images; the model is left as it is.

Boudiaf, Mueller, Ben Ayed and Bertinetto, "Parameter-free online test-time adaptation" (LAME), CVPR 2022,
section 4. Reference: github.com/fiveai/LAME, src/adaptation/lame.py.

BN mode: the source's running statistics. Answers: the assignments Y of a batch that minimise their divergence from
the source's probabilities less the affinity of images with equal assignments, found by repeating
Y = softmax(log p + W Y). Stateless: each group of images is answered from itself alone; the backbone runs once for
all. Needs one feature vector per image. Logits are log Y, so their softmax is Y.

Affinities are between unit features: `rbf` falls off with the distance, at a width that is the mean distance to
the `neighbours`-th nearest, an image being its own first; `knn` is 1 for the nearest others; `linear` is the
cosine. In `rbf` and `linear` an image is also its own neighbour, as in the reference.

Deviations. The reference has a setting for the width, which it never reads; ours has none. Its `rbf` is NaN where the
width is 0, so for a single image; ours has the affinity 1 at the distance 0, whatever the width. Its `knn` drops the
first of the nearest, which among equal images may be another one; ours drops the image itself.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.adapters._about import About
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Features, Groups, Images, Logits
from generalizeformer.errors import UserError

ABOUT = About(
    paper="Boudiaf et al., LAME, CVPR 2022",
    moves="the batch's answers",
    batch_norm="source",
    keeps="nothing",
    answers="after",
    reference="fiveai/LAME, trace lame",
    needs="one feature vector per image",
)


Affinity = Float[Tensor, "images images"]
AFFINITIES = ("rbf", "knn", "linear")
FLOOR = 1e-10  # added to probabilities before their logarithm
TOLERANCE = 1e-8  # relative change of the energy at which the repetition ends


@dataclass(frozen=True, kw_only=True)
class Config:
    affinity: Literal["rbf", "knn", "linear"] = "rbf"
    neighbours: int = 5  # of rbf and knn
    symmetric: bool = (
        False  # the mean of the affinity and its transpose; only knn is not so already
    )
    steps: int = 100  # repetitions, at most

    def __post_init__(self) -> None:
        if self.affinity not in AFFINITIES:
            raise UserError(
                f"lame: affinity is {self.affinity!r}; choose one of: {', '.join(AFFINITIES)}"
            )
        least = 2 if self.affinity == "rbf" else 1
        if self.neighbours < least:
            raise UserError(
                f"lame: neighbours is {self.neighbours}; give at least {least} for {self.affinity!r}"
                + (", which counts the image itself" if least == 2 else "")
            )
        if self.steps < 1:
            raise UserError(f"lame: steps is {self.steps}; give at least 1")


GRID: tuple[dict[str, Any], ...] = tuple(
    {"affinity": affinity, "neighbours": neighbours}
    for affinity, neighbours in (
        ("rbf", 5),
        ("rbf", 3),
        ("knn", 1),
        ("knn", 3),
        ("knn", 5),
        ("linear", 5),
    )
)
"""The reference's grid, its default first, without what is the same twice (linear) or has no width (rbf with 1)."""


class LAME:
    """The source's answers, refined group by group."""

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.source, self.config = source, config

    def __call__(self, images: Images, groups: Groups | None) -> Logits:
        check_images(images, self.source.backbone)
        together = grouping(groups, len(images), images)
        seen = self.source.network.run(images, together, {})
        # Half precision cannot hold the floor.
        dtype = torch.promote_types(seen.logits.dtype, torch.float32)
        log_p = (seen.logits.to(dtype).softmax(1) + FLOOR).log()
        features = F.normalize(seen.features.to(dtype), dim=1)
        answers = torch.empty_like(log_p)
        for group in range(len(together.sizes)):
            rows = together.ids == group
            answers[rows] = refined(log_p[rows], affinity(features[rows], self.config), self.config)
        return answers.to(seen.logits.dtype)


def affinity(features: Features, config: Config) -> Affinity:
    """How much each image (rows) listens to each other one."""
    if config.affinity == "linear":
        return features @ features.T
    # Not by matrix products: those would lose the small distances of similar images.
    distance = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
    if config.affinity == "rbf":
        nearest = distance.topk(min(config.neighbours, len(features)), largest=False).values
        width = nearest[:, -1].mean().clamp(min=torch.finfo(distance.dtype).eps)
        return (-0.5 * (distance / width).square()).exp()
    distance.fill_diagonal_(float("inf"))
    nearest = distance.topk(min(config.neighbours, len(features) - 1), largest=False).indices
    result = torch.zeros_like(distance).scatter_(1, nearest, 1.0)
    return (result + result.T) / 2 if config.symmetric else result


def refined(log_p: Logits, weights: Affinity, config: Config) -> Logits:
    """log Y, once the energy stands still."""
    log_y, before = log_p.log_softmax(1), float("inf")
    for step in range(config.steps):
        pull = weights @ log_y.exp()
        log_y = (log_p + pull).log_softmax(1)
        energy = float((log_y.exp() * (log_y - log_p - pull)).sum())
        if step > 1 and abs(energy - before) <= TOLERANCE * abs(before):
            break
        before = energy
    return log_y


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    return Stateless(LAME(source, config))
