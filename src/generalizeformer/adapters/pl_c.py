"""Pseudo labels for the classifier alone (PL-C).

Lee, "Pseudo-label: the simple and efficient semi-supervised learning method for deep neural networks", ICML
workshop 2013, in the online form of Iwasawa and Matsuo (T3A), NeurIPS 2021, section 4. Reference:
github.com/matsuolab/T3A, domainbed/adapt_algorithms.py, PLClf.

BN mode: the source's running statistics. Answers before its last update: with one step, with what earlier batches
taught. Keeps the classifier and Adam's moments from batch to batch. Needs a linear classifier; features are computed
once per batch, whatever the number of steps. A batch without a confident image still makes an update, as in the
reference: its gradients are 0, so the first such batches change nothing, and later ones follow Adam's moments.

Deviations. No weight decay; the reference takes that of source training, by default 0. The loss of a batch without
a confident image is 0 here and NaN there; the gradients are the same. The reference's harness cuts features into
batches of 32 and drops what is left over; here a batch is what arrives.
"""

from dataclasses import dataclass
from typing import Any

from generalizeformer.adapters._about import About
from generalizeformer.adapters._descent import HARNESS_GRID, HeadDescent, LabelSettings
from generalizeformer.adapters._objectives import Scalar, confident_cross_entropy
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Logits

ABOUT = About(
    paper="Lee, Pseudo-label, ICML workshop 2013; online as in T3A",
    moves="classifier",
    batch_norm="source",
    keeps="classifier, Adam's moments",
    answers="before",
    reference="matsuolab/T3A (PLClf), trace pl_clf",
    needs="linear classifier",
)


@dataclass(frozen=True, kw_only=True)
class Config(LabelSettings):
    """The harness's; a threshold of 1 leaves the source model."""


GRID: tuple[dict[str, Any], ...] = HARNESS_GRID


class PseudoLabelClassifier(HeadDescent):
    """A private copy of the classifier that learns what it is already sure of."""

    name = "pl_c"
    config: Config

    def loss(self, logits: Logits) -> Scalar:
        return confident_cross_entropy(logits, self.config.threshold)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return PseudoLabelClassifier(source, config)
