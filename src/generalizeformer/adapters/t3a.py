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
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.adapters._about import About
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.adapters._supports import Supports, observed
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Features, Images, Logits
from generalizeformer.errors import UserError

ABOUT = About(
    paper="Iwasawa and Matsuo, Test-time classifier adjustment module (T3A), NeurIPS 2021",
    moves="class templates in place of the classifier",
    batch_norm="source",
    keeps="per class the surest features",
    answers="after",
    reference="matsuolab/T3A, trace t3a",
    needs="linear classifier",
)


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


class T3A(Supports):
    """A classifier whose rows are made from its supports."""

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.source, self.limit = source, config.supports
        self.reset()

    @torch.no_grad()
    def step(self, images: Images) -> Logits:
        seen = observed(self.source, images)
        self._remember(seen.features, seen.logits)
        return self._answer(seen.features)

    @torch.no_grad()
    def predict(self, images: Images) -> Logits:
        return self._answer(observed(self.source, images).features)

    @torch.no_grad()
    def reset(self) -> None:
        self._begin_with_rows()

    def _templates(self) -> Float[Tensor, "classes feature"]:
        """Per class, the direction of the sum of its supports' directions."""
        members = F.one_hot(self.labels, self.source.classes).to(self.supports.dtype)
        return F.normalize(members.T @ F.normalize(self.supports, dim=1), dim=1)

    def _answer(self, features: Features) -> Logits:
        return features.to(self.supports.dtype) @ self._templates().T


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return T3A(source, config)
