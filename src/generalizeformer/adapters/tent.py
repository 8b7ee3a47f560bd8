"""Entropy minimisation over the scale and shift of the normalisation layers.

Wang, Shelhamer, Liu, Olshausen and Darrell, "Tent: Fully test-time adaptation by entropy minimization", ICLR
2021, section 3. Reference: github.com/DequanWang/tent, tent.py.

BN mode: the current batch's statistics (biased variance), for learning and answering. Answers before its last
update, as the reference does: with one step, with what earlier batches taught. Keeps γ, β and Adam's moments from
batch to batch (online), or only until the next one (`episodic`). Needs normalisation layers whose affine part are
parameters. A single image is normalised by itself, which works but removes most of what tells images apart.

Deviations. The private copy is in eval mode, so dropout is off; the reference leaves it on. Every BatchNorm is
served, not only BatchNorm2d. In a model without BatchNorm the affine parts of its LayerNorm, GroupNorm, … move
instead; those need no batch statistics.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from generalizeformer.adapters._batch_norm import batch_norms, use_batch_statistics
from generalizeformer.adapters._learner import Learner, released
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.normalisers import is_norm
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Config:
    learning_rate: float = 1e-3  # of Adam; 0 leaves the batch's statistics as the only change
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    steps: int = 1  # updates per batch
    episodic: bool = False  # forget everything before each batch

    def __post_init__(self) -> None:
        if not 0 <= self.learning_rate < float("inf"):
            raise UserError(
                f"tent: learning_rate is {self.learning_rate}; give a number of at least 0"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"tent: betas are {self.betas}; give two numbers from 0 to below 1")
        if self.steps < 1:
            raise UserError(f"tent: steps is {self.steps}; give at least 1")


GRID: tuple[dict[str, Any], ...] = tuple(
    {"learning_rate": 1e-3 * factor, "steps": steps} for factor in (1, 0.1, 10) for steps in (1, 3)
)
"""T3A's grid for Tent (factors of the learning rate, times steps) around the reference's default, which is first."""


class Tent(Learner):
    """A private copy of the backbone whose normalisation layers follow the entropy downhill."""

    name = "tent"

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.config, self.episodic = config, config.episodic
        super().__init__(source)

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        """γ and β of the BatchNorm, else of all norm layers."""
        use_batch_statistics(copied, self.name)
        layers = batch_norms(copied).values() or [m for m in copied.modules() if is_norm(m)]
        return released(layers, self.name, "normalisation layer with a scale or shift")

    def optimise(self, moving: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(moving, lr=self.config.learning_rate, betas=self.config.betas)

    def learn(self, images: Images) -> Logits:
        for _ in range(self.config.steps):
            logits = self.answer(images)
            self.optimizer.zero_grad()
            per_image_entropy(logits).mean().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return logits


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return Tent(source, config)
