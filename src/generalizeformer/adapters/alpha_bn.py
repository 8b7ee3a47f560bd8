"""Source and target statistics mixed in every BatchNorm layer; nothing is learned.

You, Li and Zhao, "Test-time batch statistics calibration for covariate shift", 2021 (α-BN), after Schneider et
al., "Improving robustness against common corruptions by covariate shift adaptation", NeurIPS 2020, section 3.
Reference: github.com/mariodoebler/test-time-adaptation, classification/methods/bn.py.

BN mode: mixed; mean and variance are each (1 - w) · source + w · batch, with the batch's unbiased variance, as
in the reference. One pass: deeper layers see what shallower mixed ones give. Stateless: each group of images is
answered from its own statistics alone. Needs BatchNorm layers with running statistics.

Deviations. The weight is the batch's and is called `batch_weight`: "alpha" is the source's weight in the paper
and the batch's in the reference. The paper's additional training loss (Core) is not part of this method. A group
whose layer sees one value per channel is refused, as there is no unbiased variance of one value.
"""

from dataclasses import dataclass
from typing import Any

import torch

from generalizeformer.adapters._about import About
from generalizeformer.adapters._mixed import MixedBackbone, Mixing
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import UserError

ABOUT = About(
    paper="You et al., Test-time batch statistics calibration (α-BN), 2021; Schneider et al., NeurIPS 2020",
    moves="nothing",
    batch_norm="source and batch mixed, a fixed share",
    keeps="nothing",
    answers="there is no update",
    reference="mariodoebler/test-time-adaptation, trace alpha_bn",
    needs="BatchNorm; more than one value per channel",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    batch_weight: float = 0.1  # of the batch's statistics; 0 is the source model, 1 the batch alone

    def __post_init__(self) -> None:
        if not 0 <= self.batch_weight <= 1:
            raise UserError(
                f"alpha_bn: batch_weight is {self.batch_weight}; it is a share, from 0 (source) to 1 (batch)"
            )


GRID: tuple[dict[str, Any], ...] = tuple(
    {"batch_weight": weight}
    for weight in (0.1, 0.05, 0.2, 0.3, 0.5, 0.0, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
)
"""What is searched on source data, the default first; 0 lets the search answer: leave the model as it is.

Every tenth from the source alone to the batch alone, and 0.05 besides. The reference searches nothing: the weights
are our choice.
"""


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    mixing = Mixing(
        method="alpha_bn", batch_weight=lambda sizes: torch.full_like(sizes, config.batch_weight)
    )
    return Stateless(MixedBackbone(source, mixing))
