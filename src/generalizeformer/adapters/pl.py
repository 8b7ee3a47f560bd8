"""Pseudo labels for the whole network (PL).

Lee, "Pseudo-label: the simple and efficient semi-supervised learning method for deep neural networks", ICML
workshop 2013, in the online form of Iwasawa and Matsuo (T3A), NeurIPS 2021, section 4. Reference:
github.com/matsuolab/T3A, domainbed/adapt_algorithms.py, PseudoLabel.

BN mode: the source's running statistics, which stay. Answers before its last update: with one step, with what
earlier batches taught. Keeps all parameters and Adam's moments from batch to batch. Serves every model. A batch
without a confident image still makes an update, as in the reference: its gradients are 0, so the first such batches
change nothing, and later ones follow Adam's moments.

Deviations. No weight decay; the reference takes that of source training, by default 0. The loss of a batch without
a confident image is 0 here and NaN there; the gradients are the same. `blocks` lets only part of the network move
(surgical fine-tuning), which the reference does not offer.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._descent import HARNESS_GRID, Descent, LabelSettings, release_all
from generalizeformer.adapters._objectives import Scalar, confident_cross_entropy
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Logits

ABOUT = About(
    paper="Lee, Pseudo-label, ICML workshop 2013; online as in T3A",
    moves="all parameters",
    batch_norm="source",
    keeps="all parameters, Adam's moments",
    answers="before",
    reference="matsuolab/T3A (PseudoLabel), trace pl",
    needs="nothing",
)


@dataclass(frozen=True, kw_only=True)
class Config(LabelSettings):
    blocks: tuple[str, ...] = ()  # only what lies in these modules moves; empty: everything


GRID: tuple[dict[str, Any], ...] = HARNESS_GRID


class PseudoLabel(Descent):
    """A private copy of the backbone that learns what it is already sure of."""

    name = "pl"
    config: Config

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        return release_all(copied, self.config.blocks, self.name)

    def loss(self, logits: Logits) -> Scalar:
        return confident_cross_entropy(logits, self.config.threshold)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return PseudoLabel(source, config)
