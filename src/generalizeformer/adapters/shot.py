"""Information maximisation and pseudo labels over the features, the classifier fixed (SHOT), batch by batch.

Liang, Hu and Feng, "Do we really need to access the source data? Source hypothesis transfer for unsupervised domain
adaptation", ICML 2020, section 3, in the online form of Iwasawa and Matsuo (T3A), NeurIPS 2021, section 4.
Reference: github.com/matsuolab/T3A, domainbed/adapt_algorithms.py, SHOT.

BN mode: the source's running statistics, which stay. Answers before its last update: with one step, with what
earlier batches taught. Keeps all parameters but the classifier's, and Adam's moments, from batch to batch. Needs
parameters before a linear classifier. The loss asks that a batch show many classes: with fewer images than classes
that is asked in vain. Of a single image the first part is 0 but for a rounding constant, and Adam turns what is left
into updates of full size.

Deviations. No weight decay; the reference takes that of source training, by default 0. The loss of a batch without
a confident image is that of shot_im here and NaN there; the gradients are the same. The original takes its pseudo
labels from clusters over the whole target, in many passes, with a bottleneck layer of its own; this form takes
the confident predictions of each batch, which it sees once. `blocks` lets only part of the network move (surgical
fine-tuning), which the reference does not offer.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._descent import (
    HARNESS_GRID,
    Descent,
    LabelSettings,
    release_features,
)
from generalizeformer.adapters._objectives import Scalar, confident_cross_entropy, information
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Logits
from generalizeformer.errors import UserError

ABOUT = About(
    paper="Liang et al., SHOT, ICML 2020; online as in T3A",
    moves="all parameters but the classifier's",
    batch_norm="source",
    keeps="those parameters, Adam's moments",
    answers="before",
    reference="matsuolab/T3A (SHOT), trace shot",
    needs="parameters before a linear classifier",
)


@dataclass(frozen=True, kw_only=True)
class Config(LabelSettings):
    label_weight: float = 0.1  # of the pseudo labels' loss; 0 is shot_im
    blocks: tuple[str, ...] = ()  # only what lies in these modules moves; empty: all features

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_weight < float("inf"):
            raise UserError(
                f"shot: label_weight is {self.label_weight}; give a number of at least 0 (0 is shot_im)"
            )


GRID: tuple[dict[str, Any], ...] = HARNESS_GRID


class Shot(Descent):
    """A private copy of the backbone whose features follow the loss downhill."""

    name = "shot"
    config: Config

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        classifier = self.source.slots.classifier
        return release_features(copied, classifier, self.config.blocks, self.name)

    def loss(self, logits: Logits) -> Scalar:
        labels = confident_cross_entropy(logits, self.config.threshold)
        return information(logits) + self.config.label_weight * labels


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return Shot(source, config)
