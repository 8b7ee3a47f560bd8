"""Entropy minimisation on sure images, towards flat places, with a way back when the model has collapsed.

Niu, Wu, Zhang, Wen, Chen, Zhao and Tan, "Towards stable test-time adaptation in dynamic wild world" (SAR), ICLR 2023,
section 4, algorithm 1. Reference: github.com/mr-eggplant/SAR, sar.py and sam.py.

BN mode: the current batch's statistics (biased variance), for learning and answering. Answers before its last update,
with the first of its two passes. Pass 1: the gradient of the mean entropy of the sure images, along which the
parameters climb `radius` far. Pass 2: the gradient there, from those of the same images that are still sure, moves
the parameters from where they were. Keeps γ, β, SGD's momentum, and a moving average of the entropy of pass 2; when
that falls below `recovery`, the parameters go back to the source's. Needs normalisation layers whose affine part are
parameters, besides those that `frozen` names: as in the reference the last stage, by the names that it has in ResNets
and ViTs. Of other networks, EfficientNets for one, every norm layer moves.

Published behaviour that is kept, although the paper means something else: recovery leaves SGD's momentum and the
moving average as they are, so that it repeats after every batch until the average has climbed back
(`full_recovery` forgets both). Its threshold is 0.2 whatever the number of classes, which with few classes most
models are below. Where no image is sure, there is no loss, but a step on the momentum of earlier ones.

Deviations. The reference's script lowers the learning rate for batches below 32, to 2.5e-4 · size / 32, and twice that
for single images; ours is what `learning_rate` says, so that it is 1.6 times as large in batches of 20. The margin is
a share of log(classes), where the reference has 0.4 log(1000). The threshold can be set; the reference ignores its
argument. The private copy is in eval mode, so dropout is off. Every kind of normalisation layer moves.

Nothing to search was published: the reference's only other value is the rate for ViTs, 1e-3 in batches of 64.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.adapters._about import About
from generalizeformer.adapters._entropy_descent import TOP_LAYERS, EntropyDescent, Settings
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.shapes import Images, Logits

ABOUT = About(
    paper="Niu et al., SAR, ICLR 2023",
    moves="γ, β of norm layers, those of the last stage of ResNets and ViTs excepted",
    batch_norm="batch",
    keeps="γ, β, SGD's momentum, mean entropy",
    answers="before",
    reference="mr-eggplant/SAR, trace sar",
    needs="norm layers with γ, β that are not frozen",
)


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """The reference's values, made for ImageNet."""

    frozen: tuple[str, ...] = TOP_LAYERS
    radius: float = 0.05  # how far pass 1 climbs, over all parameters together
    recovery: float = 0.2  # mean entropy below which the model counts as collapsed; 0 never does
    full_recovery: bool = False  # as the paper means it

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("radius", "recovery"):
            if not 0 <= getattr(self, name) < float("inf"):
                self._refuse(name, "give a number of at least 0")


class SAR(EntropyDescent):
    """SGD along gradients taken a little uphill, and the average that tells a collapse."""

    name = "sar"
    config: Config
    average: float | None  # of the entropy in pass 2

    def reset(self) -> None:
        super().reset()
        with torch.inference_mode(False):
            self.start = self.values()
        self.average = None

    def update(self, images: Images) -> Logits:
        logits = self.answer(images)
        entropies = per_image_entropy(logits)
        sure = entropies < self.margin
        self._differentiate(entropies[sure])
        here = self.values()
        self._climb()
        uphill = per_image_entropy(self.answer(images))[sure]
        uphill = uphill[uphill < self.margin]
        self._differentiate(uphill)
        self.put(here)
        self.optimizer.step()
        self._watch(uphill.detach())
        return logits

    def _differentiate(self, entropies: Float[Tensor, " sure"]) -> None:
        """Gradients of the mean; of no images, gradients that are exactly 0."""
        self.optimizer.zero_grad()
        mean = entropies.sum() / max(1, len(entropies))
        mean.backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _climb(self) -> None:
        gradients = [value.grad for value in self.moving if value.grad is not None]
        length = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for value in self.moving:
            if value.grad is not None:
                value.add_(value.grad * (self.config.radius / (length + 1e-12)))

    def _watch(self, entropies: Float[Tensor, " sure"]) -> None:
        """Follows the entropy, and goes back to the source where it has become too small."""
        if len(entropies):
            mean = float(entropies.mean())
            self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
        if self.average is None or self.average >= self.config.recovery:
            return
        if self.config.full_recovery:
            self.reset()
        else:
            self.put(self.start)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return SAR(source, config)
