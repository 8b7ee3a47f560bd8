"""Class templates made from confident target features, in place of the classifier; no gradients.

Iwasawa and Matsuo, "Test-time classifier adjustment module for model-agnostic domain generalization" (T3A),
NeurIPS 2021, section 3, algorithm 1. Reference: github.com/matsuolab/T3A, domainbed/adapt_algorithms.py.

BN mode: the source's running statistics. Answers after its update: a batch's own features are added before it is
answered. Keeps, per class, the features of lowest entropy seen so far, beginning with the classifier's own rows.
Needs a linear classifier. Logits are features times unit templates: no bias, and not the source's scale.

Deviations. `supports=None` keeps all; in the reference, "all" (-1) deletes the support of highest entropy of
every class at every call. Equal entropies keep their order of arrival. The reference names no default, only a grid
of {1, 5, 20, 50, 100, all} to choose from on source data; ours is its largest finite value. A class of which
nothing is kept has the template 0, and so the logit 0, as in the reference.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.grouped import Output
from generalizeformer.core.groups import grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.shapes import Features, Images, Logits
from generalizeformer.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Config:
    supports: int | None = 100  # features kept per class; None keeps all, and memory grows

    def __post_init__(self) -> None:
        if self.supports is not None and self.supports < 1:
            raise UserError(
                f"t3a: supports is {self.supports}; give at least 1, or None to keep all"
            )


GRID: tuple[dict[str, Any], ...] = tuple(
    {"supports": supports} for supports in (100, 1, 5, 20, 50, None)
)
"""The reference's grid, to be searched on source data; our default first."""


class T3A:
    """Supports, their pseudo labels and entropies: by class, and inside a class by entropy."""

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.source, self.config = source, config
        self.reset()

    @torch.no_grad()
    def step(self, images: Images) -> Logits:
        seen = self._observe(images)
        self._remember(seen.features, seen.logits)
        return self._answer(seen.features)

    @torch.no_grad()
    def predict(self, images: Images) -> Logits:
        return self._answer(self._observe(images).features)

    @torch.no_grad()
    def reset(self) -> None:
        classifier = cast(
            nn.Linear, self.source.backbone.get_submodule(self.source.slots.classifier)
        )
        rows = classifier.weight
        self.supports, self.entropies = rows[:0], rows[:0, 0]
        self.labels = torch.empty(0, dtype=torch.long, device=rows.device)
        # Labelled by what they are predicted as, which is not always the class they are the row of.
        self._remember(rows, F.linear(rows, rows, classifier.bias))

    def _observe(self, images: Images) -> Output:
        check_images(images, self.source.backbone)
        return self.source.network.run(images, grouping(None, len(images), images), {})

    def _remember(self, features: Features, logits: Logits) -> None:
        """Adds the features with their predicted classes; of each class the surest stay, the others go for good."""
        supports = torch.cat([self.supports, features.to(self.supports.dtype)])
        entropies = torch.cat([self.entropies, per_image_entropy(logits).to(self.entropies.dtype)])
        labels = torch.cat([self.labels, logits.argmax(1)])
        order = entropies.argsort(stable=True)
        order = order[labels[order].argsort(stable=True)]
        if self.config.supports is not None:
            counts = torch.bincount(labels, minlength=self.source.classes)
            first = counts.cumsum(0) - counts  # where each class begins in `order`
            rank = torch.arange(len(order), device=order.device) - first[labels[order]]
            order = order[rank < self.config.supports]
        self.supports, self.labels, self.entropies = (
            supports[order],
            labels[order],
            entropies[order],
        )

    def _templates(self) -> Float[Tensor, "classes feature"]:
        """Per class, the direction of the sum of its supports' directions."""
        members = F.one_hot(self.labels, self.source.classes).to(self.supports.dtype)
        return F.normalize(members.T @ F.normalize(self.supports, dim=1), dim=1)

    def _answer(self, features: Features) -> Logits:
        return features.to(self.supports.dtype) @ self._templates().T


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return T3A(source, config)
