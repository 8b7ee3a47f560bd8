"""Entropy minimisation on images that are sure and not like the others: ETA, and what EATA adds its anchor to."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.adapters._entropy_descent import EntropyDescent, Settings
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.shapes import Images, Logits


@dataclass(frozen=True, kw_only=True)
class SelectionSettings(Settings):
    redundancy_margin: float = (
        0.05  # cosine with the mean prediction above which nothing is learned
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.redundancy_margin >= 0:
            self._refuse("redundancy_margin", "it is a cosine, from 0 (none) to above 1 (all)")


class SelectiveDescent(EntropyDescent):
    """Weighted entropy of the chosen images, beside a moving average of their predictions."""

    config: SelectionSettings
    average: Float[Tensor, " classes"] | None  # of the probabilities of chosen images

    def reset(self) -> None:
        super().reset()
        self.average = None

    def update(self, images: Images) -> Logits:
        logits = self.answer(images)
        entropies = per_image_entropy(logits)
        chosen = (entropies < self.margin) & self._is_new(logits.detach().softmax(1))
        if chosen.any():  # else the anchor does not pull either, as in the reference
            self._follow(logits[chosen].detach().softmax(1).mean(0))
            entropies = entropies[chosen]
            weights = (self.margin - entropies.detach()).exp()
            self.descend((weights * entropies).mean() + self.anchor())
        return logits

    def anchor(self) -> Tensor | float:
        """What the loss has besides the entropy."""
        return 0.0

    def _is_new(self, probabilities: Logits) -> Tensor:
        if self.average is None:
            return torch.ones(len(probabilities), dtype=torch.bool, device=probabilities.device)
        likeness = F.cosine_similarity(self.average.unsqueeze(0), probabilities, dim=1)
        return likeness.abs() < self.config.redundancy_margin

    def _follow(self, mean: Tensor) -> None:
        self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
