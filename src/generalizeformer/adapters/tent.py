"""Entropy minimisation over the scale and shift of the normalisation layers.

Wang, Shelhamer, Liu, Olshausen and Darrell, "Tent: Fully test-time adaptation by entropy minimization", ICLR
2021, section 3. Reference: github.com/DequanWang/tent, tent.py.

BN mode: the current batch's statistics (biased variance), for learning and answering. Answers before its last
update, as the reference does: with one step, with what earlier batches taught. Keeps γ, β and Adam's moments from
batch to batch (online), or only until the next one (`episodic`). Needs normalisation layers whose affine part are
parameters. A single image is normalised by itself, which works but removes most of what tells images apart.

Deviations. The private copy is in eval mode, so dropout is off; the reference leaves it on. Every BatchNorm is
served, not only BatchNorm2d. In a model whose BatchNorm has no γ and β, or that has none, those of its LayerNorm,
GroupNorm, … move instead; what BatchNorm there is uses the batch's statistics all the same. `blocks` lets only the
layers of some part of the network move (surgical fine-tuning); all of them still use the batch's statistics. With the
learning rates of source training this is the Tent of T3A's harness (TentFull).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._batch_norm import affine_layers, use_batch_statistics
from generalizeformer.adapters._blocks import where, within
from generalizeformer.adapters._descent import HARNESS_GRID, Descent, check_settings
from generalizeformer.adapters._learner import released
from generalizeformer.adapters._objectives import Scalar, mean_entropy
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Logits
from generalizeformer.errors import UserError

ABOUT = About(
    paper="Wang et al., Tent, ICLR 2021",
    moves="γ, β of norm layers",
    batch_norm="batch",
    keeps="γ, β, Adam's moments",
    answers="before",
    reference="DequanWang/tent, trace tent; matsuolab/T3A (TentFull), trace tent_full_t3a",
    needs="norm layers with γ, β",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    learning_rate: float = 1e-3  # of Adam; 0 leaves the batch's statistics as the only change
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    steps: int = 1  # updates per batch
    episodic: bool = False  # forget everything before each batch
    blocks: tuple[str, ...] = ()  # only layers in these modules move; empty: all

    def __post_init__(self) -> None:
        check_settings("tent", self.learning_rate, self.steps)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"tent: betas are {self.betas}; give two numbers from 0 to below 1")


GRID: tuple[dict[str, Any], ...] = (
    *({"learning_rate": 1e-3 * factor, "steps": n} for factor in (1, 0.1, 10) for n in (1, 3)),
    *HARNESS_GRID,
)
"""T3A's grid for Tent (factors of the learning rate, times steps) twice.

First around the default, which is the rate of Tent's own repository; then around that of T3A's harness (_descent.py).
"""


class Tent(Descent):
    """A private copy of the backbone whose normalisation layers follow the entropy downhill."""

    name = "tent"
    config: Config

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.episodic = config.episodic
        super().__init__(source, config)

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        """γ and β of the BatchNorm, else of all norm layers, as far as they lie in the blocks."""
        use_batch_statistics(copied, self.name)
        layers = affine_layers(copied)
        blocks, kind = self.config.blocks, "normalisation layer with a scale or shift"
        return released(
            within(layers, copied, blocks, self.name), self.name, f"{kind}{where(blocks)}"
        )

    def optimise(self, moving: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(moving, lr=self.config.learning_rate, betas=self.config.betas)

    def loss(self, logits: Logits) -> Scalar:
        return mean_entropy(logits)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return Tent(source, config)
