"""Information maximisation over the features, the classifier fixed (SHOT-IM), batch by batch.

Liang, Hu and Feng, "Do we really need to access the source data? Source hypothesis transfer for unsupervised domain
adaptation", ICML 2020, section 3.2, in the online form of Iwasawa and Matsuo (T3A), NeurIPS 2021, section 4.
Reference: github.com/matsuolab/T3A, domainbed/adapt_algorithms.py, SHOTIM.

BN mode: the source's running statistics, which stay. Answers before its last update: with one step, with what
earlier batches taught. Keeps all parameters but the classifier's, and Adam's moments, from batch to batch. Needs
parameters before a linear classifier. The loss asks that a batch show many classes: with fewer images than classes
that is asked in vain. Of a single image it is 0 but for a rounding constant, and Adam turns what is left into
updates of full size.

Deviations. No weight decay; the reference takes that of source training, by default 0. The original trains for
many passes over the target with a bottleneck layer of its own; this form sees each batch once. `blocks` lets only
part of the network move (surgical fine-tuning), which the reference does not offer.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._descent import HARNESS_GRID, Descent, Settings, release_features
from generalizeformer.adapters._objectives import Scalar, information
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Logits

ABOUT = About(
    paper="Liang et al., SHOT, ICML 2020; online as in T3A",
    moves="all parameters but the classifier's",
    batch_norm="source",
    keeps="those parameters, Adam's moments",
    answers="before",
    reference="matsuolab/T3A (SHOTIM), trace shot_im",
    needs="parameters before a linear classifier",
)


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    blocks: tuple[str, ...] = ()  # only what lies in these modules moves; empty: all features


GRID: tuple[dict[str, Any], ...] = HARNESS_GRID


class ShotIM(Descent):
    """A private copy of the backbone whose features follow the loss downhill."""

    name = "shot_im"
    config: Config

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        classifier = self.source.slots.classifier
        return release_features(copied, classifier, self.config.blocks, self.name)

    def loss(self, logits: Logits) -> Scalar:
        return information(logits)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return ShotIM(source, config)
