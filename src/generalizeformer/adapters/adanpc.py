"""A nearest-neighbour vote over remembered features, to which the sure target features are added; no gradients.

Zhang, Wang, Jin, Yuan, Zhang, Wang, Jin and Tan, "AdaNPC: exploring non-parametric classifier for test-time
adaptation", ICML 2023, section 3. Reference: github.com/yfzhang114/AdaNPC, domainbed/adapt_algorithms.py and knn.py.

BN mode: the source's running statistics. Answers before its update: a batch's own features are added afterwards, with
the labels that they were answered with. Keeps unit features and labels, without bound. Needs a linear classifier.

Deviations. The reference's memory begins with one random row of label 0, then the labelled features of all source
images, also of those used to choose its settings. An adapter is lent a model and no source data, so ours begins with
the classifier's rows, each under its own class: the source's own prototypes. Everything after that is as published,
and a memory of labelled features put into `keys` and `labels` gives the reference's numbers. Answers are the
logarithms of its scores (shares of the vote, plus 1e-5, at most 1). Where there are fewer features than neighbours
asked for, all vote; the reference fails.

As published, confidence is the largest softmax of scores that are shares already, from 1 / classes to about
e / (e + classes - 1): 0.31 for 7 classes. `confidence` above that admits nothing, and then the memory never changes.
The reference's script begins with 0.1, which admits everything up to 10 classes; our default is 0, of its grid.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.adapters._about import About
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.adapters._supports import observed, rows_of
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Features, Images, Logits
from generalizeformer.errors import UserError

ABOUT = About(
    paper="Zhang et al., AdaNPC, ICML 2023",
    moves="a memory of labelled features",
    batch_norm="source",
    keeps="features and labels, without bound; at first the classifier's rows, published: labelled source features",
    answers="before",
    reference="yfzhang114/AdaNPC, trace adanpc",
    needs="linear classifier",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    confidence: float = 0.0  # what a feature needs to be added; see above for the range
    neighbours: int = 100  # features that vote
    temperature: float = 0.1  # of cosines before softmax

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < float("inf"):
            raise UserError(
                f"adanpc: confidence is {self.confidence}; give 0 (add all) or more, above 1 to add nothing"
            )
        if self.neighbours < 1:
            raise UserError(f"adanpc: neighbours is {self.neighbours}; give at least 1")
        if not self.temperature > 0:
            raise UserError(f"adanpc: temperature is {self.temperature}; give a number above 0")


GRID: tuple[dict[str, Any], ...] = tuple(
    {"confidence": confidence, "neighbours": neighbours, "temperature": temperature}
    for confidence, neighbours, temperature in product(
        (0.0, 0.25, 0.75, 1.1), (100, 1, 5, 10, 25, 50, 75, 150, 200), (0.1, 0.01, 0.05, 0.25, 0.5)
    )
)
"""The reference's grid, to be searched on source data; our default first."""


class AdaNPC:
    """Unit features with labels, of which the nearest vote."""

    keys: Float[Tensor, "memory feature"]
    labels: Int64[Tensor, " memory"]

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.source, self.config = source, config
        self.reset()

    @torch.no_grad()
    def step(self, images: Images) -> Logits:
        features = observed(self.source, images).features
        scores = self._scores(features)
        confidence, labels = scores.softmax(1).max(1)
        sure = confidence >= self.config.confidence
        self._remember(features[sure], labels[sure])
        return scores.log()

    @torch.no_grad()
    def predict(self, images: Images) -> Logits:
        return self._scores(observed(self.source, images).features).log()

    @torch.no_grad()
    def reset(self) -> None:
        rows, _ = rows_of(self.source)
        self.keys, self.labels = rows[:0], torch.empty(0, dtype=torch.long, device=rows.device)
        self._remember(rows, torch.arange(len(rows), device=rows.device))

    def _remember(self, features: Features, labels: Int64[Tensor, " images"]) -> None:
        added = F.normalize(features.to(self.keys.dtype), dim=1)
        self.keys, self.labels = torch.cat([self.keys, added]), torch.cat([self.labels, labels])

    def _scores(self, features: Features) -> Float[Tensor, "images classes"]:
        """Of each class, its share of the vote, every voter weighted by softmax of its cosine."""
        cosines = F.normalize(features.to(self.keys.dtype), dim=1) @ self.keys.T
        near, voters = cosines.topk(min(self.config.neighbours, len(self.keys)))
        weights = (near / self.config.temperature).softmax(1)
        votes = weights.new_zeros(len(features), self.source.classes)
        return (votes.scatter_add(1, self.labels[voters], weights) + 1e-5).clamp(max=1.0)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return AdaNPC(source, config)
