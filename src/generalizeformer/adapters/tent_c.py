"""Entropy minimisation over the classifier alone (Tent-C).

Iwasawa and Matsuo, "Test-time classifier adjustment module for model-agnostic domain generalization" (T3A),
NeurIPS 2021, section 4, after Wang et al., "Tent", ICLR 2021. Reference: github.com/matsuolab/T3A,
domainbed/adapt_algorithms.py, TentClf.

BN mode: the source's running statistics. Answers before its last update: with one step, with what earlier batches
taught. Keeps the classifier and Adam's moments from batch to batch. Needs a linear classifier; features are computed
once per batch, whatever the number of steps.

Deviations. No weight decay; the reference takes that of source training, by default 0. The reference's harness cuts
features into batches of 32 and drops what is left over; here a batch is what arrives.
"""

from dataclasses import dataclass
from typing import Any

from generalizeformer.adapters._about import About
from generalizeformer.adapters._descent import HARNESS_GRID, HeadDescent, Settings
from generalizeformer.adapters._objectives import Scalar, mean_entropy
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Logits

ABOUT = About(
    paper="Iwasawa and Matsuo (T3A), NeurIPS 2021, after Tent: Tent-C",
    moves="classifier",
    batch_norm="source",
    keeps="classifier, Adam's moments",
    answers="before",
    reference="matsuolab/T3A (TentClf), trace tent_clf",
    needs="linear classifier",
)


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """The harness's."""


GRID: tuple[dict[str, Any], ...] = HARNESS_GRID


class TentC(HeadDescent):
    """A private copy of the classifier that follows the entropy downhill."""

    name = "tent_c"

    def loss(self, logits: Logits) -> Scalar:
        return mean_entropy(logits)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return TentC(source, config)
