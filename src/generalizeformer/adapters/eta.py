"""Entropy minimisation on sure and varied images only, each weighted by how sure it is.

Niu, Wu, Zhang, Chen, Zheng, Zhao and Tan, "Efficient test-time model adaptation without forgetting", ICML 2022,
section 4.1: ETA, which is EATA without its anchor. Reference: github.com/mr-eggplant/EATA, eata.py.

BN mode: the current batch's statistics (biased variance), for learning and answering. Answers before its last update.
Learns from images whose entropy is below a margin and whose prediction is unlike the moving average of those learned
from before, with weight exp(margin - entropy); where there is none, nothing moves. Keeps γ, β, SGD's momentum and that
average. Needs normalisation layers whose affine part are parameters.

The published redundancy margins are 0.05 for 1000 classes, our default, and 0.4 for 10. With few classes the default
stops learning after the first batch that taught: predictions have too few places to differ in.

Deviations. `reset` forgets the moving average too; the reference keeps it. Margins are shares of log(classes), where
the reference has 0.4 log(1000). The private copy is in eval mode, so dropout is off. Every kind of normalisation
layer moves, not only BatchNorm2d; those without batch statistics need none.
"""

from dataclasses import dataclass
from typing import Any

from generalizeformer.adapters._about import About
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.adapters._sample_selection import SelectionSettings, SelectiveDescent
from generalizeformer.core.generalizeformer import GeneralizeFormer

ABOUT = About(
    paper="Niu et al., EATA, ICML 2022: ETA, without the anchor",
    moves="γ, β of norm layers",
    batch_norm="batch",
    keeps="γ, β, SGD's momentum, mean prediction",
    answers="before",
    reference="mr-eggplant/EATA, trace eata",
    needs="norm layers with γ, β",
)


@dataclass(frozen=True, kw_only=True)
class Config(SelectionSettings):
    """The reference's values: its script, made for ImageNet."""


GRID: tuple[dict[str, Any], ...] = (
    {"learning_rate": 2.5e-4, "redundancy_margin": 0.05},
    {"learning_rate": 5e-3, "redundancy_margin": 0.4},
)
"""The paper's two settings, for ImageNet and for CIFAR-10; the default first."""


class ETA(SelectiveDescent):
    name = "eta"


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return ETA(source, config)
