"""Entropy minimisation over a new BatchNorm layer between the features and the classifier (Tent-BN).

Iwasawa and Matsuo, "Test-time classifier adjustment module for model-agnostic domain generalization" (T3A),
NeurIPS 2021, section 4, after Wang et al., "Tent", ICLR 2021. Reference: github.com/matsuolab/T3A,
domainbed/adapt_algorithms.py, TentPreBN and PreBN.

BN mode: the source's running statistics in the backbone; the current batch's (biased variance) in the new layer,
for learning and answering. Answers before its last update: with one step, with what earlier batches taught. Keeps
γ, β of the new layer and Adam's moments from batch to batch. Needs a linear classifier and at least 2 images per
batch, but no BatchNorm of the model's own. Not the source model even before it learns: the classifier was trained
on features as they are, and here it meets them standardised.

Deviations. No weight decay; the reference takes that of source training, by default 0. The reference's harness cuts
features into batches of 32 and drops what is left over; here a batch is what arrives.
"""

from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._descent import HARNESS_GRID, HeadDescent, Settings
from generalizeformer.adapters._objectives import Scalar, mean_entropy
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Features, Logits
from generalizeformer.errors import ImageError

ABOUT = About(
    paper="Iwasawa and Matsuo (T3A), NeurIPS 2021, after Tent: Tent-BN",
    moves="γ, β of a new BatchNorm before the classifier",
    batch_norm="source; batch in the new layer",
    keeps="γ, β of the new layer, Adam's moments",
    answers="before",
    reference="matsuolab/T3A (TentPreBN), trace tent_prebn",
    needs="linear classifier; 2 images per batch",
)


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """The harness's; with a learning rate of 0 features are still standardised per batch."""


GRID: tuple[dict[str, Any], ...] = HARNESS_GRID


class TentBN(HeadDescent):
    """A new normalisation layer that follows the entropy downhill, before a classifier that stays."""

    name = "tent_bn"

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        classifier = cast(nn.Linear, copied)
        norm = nn.BatchNorm1d(classifier.in_features, track_running_stats=False)
        self.norm = norm.to(classifier.weight).eval()
        return list(self.norm.parameters())

    def respond(self, features: Features) -> Logits:
        if len(features) < 2:
            raise ImageError(
                "tent_bn: 1 image has no batch statistics of its features; give at least 2 images per batch"
            )
        return super().respond(self.norm(features))

    def loss(self, logits: Logits) -> Scalar:
        return mean_entropy(logits)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return TentBN(source, config)
