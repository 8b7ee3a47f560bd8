"""ETA, held near the source where that matters to the answers: a Fisher-weighted anchor against forgetting.

Niu, Wu, Zhang, Chen, Zheng, Zhao and Tan, "Efficient test-time model adaptation without forgetting", ICML 2022,
section 4. Reference: github.com/mr-eggplant/EATA, eata.py, and main.py for the importance.

BN mode, what teaches, and when it answers: as ETA (eta.py). The loss also has `fisher_alpha` times the sum of
importance * (parameter - source's)²; a batch that teaches nothing is not pulled back either. Keeps what ETA keeps, and
an importance per parameter. Needs normalisation layers whose affine part are parameters.

Where the importance comes from. The reference squares the gradients of the source model's cross-entropy with its own
answers, a batch at a time, and averages them over 2000 unlabelled images like those of the source, before it meets the
target. An adapter is shown target images only, so ours come from the first 2000 of the stream: every such batch is
weighed at the source's parameters and under its own statistics before it is learned from, which costs a second
backward pass. The anchor has no pull on the very first update. Who has images like the source's can set
`fisher_images` to 0 and give batches of them to `weigh` after each reset; then all is as in the reference.

Deviations, besides that: those of ETA.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.adapters._about import About
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.adapters._sample_selection import SelectionSettings, SelectiveDescent
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Images, Logits

ABOUT = About(
    paper="Niu et al., EATA, ICML 2022",
    moves="γ, β of norm layers, held near the source's",
    batch_norm="batch",
    keeps="γ, β, SGD's momentum, mean prediction, importance (of target images, published: of source images)",
    answers="before",
    reference="mr-eggplant/EATA, trace eata",
    needs="norm layers with γ, β",
)


@dataclass(frozen=True, kw_only=True)
class Config(SelectionSettings):
    """The reference's values: its script, made for ImageNet."""

    fisher_alpha: float = 2000.0  # weight of the anchor; 0 is ETA
    fisher_images: int = (
        2000  # of the stream, to weigh parameters with; the last batch counts whole
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.fisher_alpha < float("inf"):
            self._refuse("fisher_alpha", "give a number of at least 0")
        if self.fisher_images < 0:
            self._refuse("fisher_images", "give at least 0")


GRID: tuple[dict[str, Any], ...] = (
    {"learning_rate": 2.5e-4, "redundancy_margin": 0.05, "fisher_alpha": 2000.0},
    {"learning_rate": 5e-3, "redundancy_margin": 0.4, "fisher_alpha": 1.0},
)
"""The paper's two settings, for ImageNet and for CIFAR-10; the default first."""


class EATA(SelectiveDescent):
    """ETA beside the source's parameters and how important each is."""

    name = "eata"
    config: Config

    def reset(self) -> None:
        super().reset()
        with torch.inference_mode(False):
            self.start = self.values()
            self.importance = [torch.zeros_like(value) for value in self.start]
        self.batches_weighed = self.images_weighed = 0

    def learn(self, images: Images) -> Logits:
        if self.images_weighed < self.config.fisher_images:
            self.weigh(images)
        return super().learn(images)

    def weigh(self, images: Images) -> None:
        """Takes a batch into the importance: the mean over batches of squared gradients at the source."""
        now = self.values()
        self.put(self.start)
        try:
            logits = self.answer(images)
            loss = F.cross_entropy(logits, logits.detach().argmax(1))
            gradients = torch.autograd.grad(
                loss, self.moving, allow_unused=True, materialize_grads=True
            )
        finally:
            self.put(now)
        self.batches_weighed += 1
        self.images_weighed += len(images)
        for mean, gradient in zip(self.importance, gradients, strict=True):
            mean += (gradient.square() - mean) / self.batches_weighed

    def anchor(self) -> Tensor:
        parts = zip(self.importance, self.moving, self.start, strict=True)
        pulls = [(weight * (value - start).square()).sum() for weight, value, start in parts]
        return self.config.fisher_alpha * torch.stack(pulls).sum()


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return EATA(source, config)
