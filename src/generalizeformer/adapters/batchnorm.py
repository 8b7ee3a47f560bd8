"""The batch's statistics in every BatchNorm layer, with the source's as a prior; nothing is learned.

Schneider, Rusak, Eck, Bringmann, Brendel and Bethge, "Improving robustness against common corruptions by covariate
shift adaptation", NeurIPS 2020, section 3 (BN-adapt). Reference for prior 0: github.com/DequanWang/tent, norm.py;
for mixing: github.com/bethgelab/robustness, robusta/batchnorm/bn.py.

BN mode: mixed; mean and variance are each N/(N+n) · source + n/(N+n) · batch, with n the number of images in the
batch, N the prior, and the batch's biased variance. Prior 0 is the batch alone. One pass: deeper layers see what
shallower mixed ones give. Stateless: each group of images is answered from its own statistics alone. Needs
BatchNorm layers with running statistics.

Deviations. The reference for mixing takes a share in place of N, and the batch's unbiased variance; ours is the
biased one throughout, so that prior 0 is what BatchNorm computes while it trains. That one's running averages,
which norm.py moves or resets and never reads, are not kept: its three modes give the same answers, and so do we.
A group whose layer sees one value per channel is refused, as one value has no variance.
"""

from dataclasses import dataclass
from typing import Any

from generalizeformer.adapters._about import About
from generalizeformer.adapters._mixed import MixedBackbone, Mixing
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import UserError

ABOUT = About(
    paper="Schneider et al., Improving robustness by covariate shift adaptation (BN-adapt), NeurIPS 2020",
    moves="nothing",
    batch_norm="source and batch mixed, by a prior and the batch's size",
    keeps="nothing",
    answers="there is no update",
    reference="DequanWang/tent, trace bn_adapt",
    needs="BatchNorm; more than one value per channel",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    prior: float = 0.0  # images that the source's statistics count for; 16 suits small batches

    def __post_init__(self) -> None:
        if not 0 <= self.prior < float("inf"):
            raise UserError(
                f"batchnorm: prior is {self.prior}; give a number of images, 0 (the batch alone) or more"
            )


GRID: tuple[dict[str, Any], ...] = ({"prior": 0.0}, {"prior": 16.0})
"""The batch alone, which is the default, and the prior that is usual for batches of few images."""


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    mixing = Mixing(
        method="batchnorm",
        batch_weight=lambda sizes: sizes / (sizes + config.prior),
        unbiased=False,
    )
    return Stateless(MixedBackbone(source, mixing))
