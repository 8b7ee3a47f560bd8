"""Classes told by the nearest kept images, from which the scale and shift of the BatchNorm layers learn.

Jang, Chung and Chung, "Test-time adaptation via self-training with nearest neighbor information", ICLR 2023 (first
public in 2022), the variant TAST-BN. Reference: github.com/mingukjang/TAST, domainbed/adapt_algorithms.py.

BN mode: the current batch's statistics (biased variance): of the batch alone to label new supports, of the batch and
all kept images together to learn and to answer. Answers with its supports after, and its γ, β before their update: a
batch's own images are supports already. Keeps images, at most 150 of them, with the label and entropy of their
arrival, γ, β, and Adam's moments. Needs BatchNorm layers with a scale and shift, a linear classifier, and images of
one size.

Deviations. Answers are the logarithms of the reference's probabilities, so that softmax gives those back. Before the
first batch there is no support, and `predict` gives the classifier's answer. Where there are fewer supports than
neighbours asked for, all are used; the reference fails. With more than 150 classes each class keeps one image; the
reference would keep none. The private copy is in eval mode, so dropout is off. The reference names no default, only a
grid to choose from on source data; ours is its largest memory.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from generalizeformer.adapters._about import About
from generalizeformer.adapters._batch_norm import batch_norms, use_batch_statistics
from generalizeformer.adapters._learner import CopyLearner, released
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.adapters._prototypes import Judgement, judged, nearest
from generalizeformer.adapters._supports import Supports
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.errors import ImageError, UserError

ABOUT = About(
    paper="Jang et al., TAST, ICLR 2023: TAST-BN",
    moves="γ, β of BatchNorm",
    batch_norm="batch, together with the kept images",
    keeps="images (at most 150, or one per class), γ, β, Adam's moments",
    answers="supports after, γ, β before",
    reference="mingukjang/TAST, trace tast_bn",
    needs="BatchNorm with γ, β; linear classifier; images of one size",
)


MOST_IMAGES = 150
"""The reference's bound on the memory, over all classes."""


@dataclass(frozen=True, kw_only=True)
class Config:
    supports: int = 20  # images kept per class, or fewer where all classes together would pass 150
    neighbours: int = 4  # supports that speak for an image
    steps: int = 1  # updates per batch
    learning_rate: float = 1e-3  # of Adam
    scale: float = 10.0  # of cosines before softmax

    def __post_init__(self) -> None:
        for name in ("supports", "neighbours", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"tast_bn: {name} is {getattr(self, name)}; give at least 1")
        if not (0 <= self.learning_rate < float("inf") and 0 < self.scale < float("inf")):
            raise UserError(
                f"tast_bn: learning_rate is {self.learning_rate} and scale is {self.scale}; give a learning rate of "
                "at least 0 and a scale above 0"
            )


GRID: tuple[dict[str, Any], ...] = tuple(
    {"supports": supports, "neighbours": neighbours, "steps": steps}
    for supports, neighbours, steps in product((20, 1, 5), (4, 1, 2, 8), (1, 3))
)
"""The reference's grid, to be searched on source data; our default first."""


class TASTBN(Supports, CopyLearner):
    """A private copy of the backbone beside the images that it learns from."""

    name = "tast_bn"

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.config = config
        self.limit: int = max(1, min(config.supports, MOST_IMAGES // source.classes))
        super().__init__(source)

    def reset(self) -> None:
        super().reset()
        with torch.inference_mode(False):
            self._forget(next(self.backbone.parameters()).detach())

    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        """γ and β of the BatchNorm layers; the copy shows the features that its classifier gets."""
        use_batch_statistics(copied, self.name)

        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.features = inputs[0]

        copied.get_submodule(self.source.slots.classifier).register_forward_pre_hook(note)
        kind = "BatchNorm layer with a scale or shift"
        return released(batch_norms(copied).values(), self.name, kind)

    def optimise(self, moving: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(moving, self.config.learning_rate)

    def learn(self, images: Images) -> Logits:
        self._check_size(images)
        with torch.no_grad():
            self._remember(images, self.answer(images))
        for _ in range(self.config.steps):
            judgement = self._judge(images)
            self.optimizer.zero_grad()
            judgement.divergence().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return judgement.log_answers()

    @torch.no_grad()
    def predict(self, images: Images) -> Logits:
        check_images(images, self.source.backbone)
        self._check_size(images)
        if not len(self.supports):
            return self.answer(images)
        return self._judge(images).log_answers()

    def _judge(self, images: Images) -> Judgement:
        self.answer(torch.cat([images, self.supports]))
        points, seen = self.features, self.features.detach()
        count = min(self.config.neighbours, self.limit)
        near = nearest(seen[: len(images)], seen[len(images) :], count)
        return judged(points, near, self.labels, self.source.classes, self.config.scale)

    def _check_size(self, images: Images) -> None:
        if len(self.supports) and images.shape[1:] != self.supports.shape[1:]:
            raise ImageError(
                f"tast_bn: got images of {tuple(images.shape[1:])} after images of {tuple(self.supports.shape[1:])}, "
                "which it keeps and runs beside them; give one size, or reset first"
            )


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return TASTBN(source, config)
