"""Entropy minimisation on images that are sure because of what they show, not because of how they look.

Lee, Jung, Lee, Park, Shin, Hwang and Yoon, "Entropy is not enough for test-time adaptation: from the perspective of
disentangled factors" (DeYO), ICLR 2024, section 3. Reference: github.com/Jhyun17/DeYO, methods/deyo.py.

BN mode: the current batch's statistics (biased variance), for learning and answering. Answers before its last update.
Images whose entropy is below a margin are shown again with their patches in random order, which destroys what they
show: as a batch of their own, without gradients. The fall of the probability of their predicted class (PLPD, pseudo-
label probability difference) must pass a threshold. The loss is the mean entropy of the images left, each weighted by
exp(weight margin - entropy) + exp(PLPD); where none is left, nothing moves. Keeps γ, β, SGD's momentum, and the state
of its random numbers, which begin anew at reset. Needs normalisation layers whose affine part are parameters, besides
those that `frozen` names (as in SAR, sar.py), and images of at least `patches` pixels a side.

Deviations. The reference's script lowers the learning rate for batches below 32, to 2.5e-4 · size / 32, and twice that
for single images; ours is what `learning_rate` says. Margins are shares of log(classes), as in the reference's script.
Only the patch shuffle of its three ways to destroy an image is here, its default. Images need not be square. `reset`
is defined; in the reference it fails. The private copy is in eval mode, so dropout is off. Every kind of normalisation
layer moves. A network that refuses single images refuses a batch in which a single image is sure; a refused batch
teaches nothing and draws no random numbers.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.adapters._about import About
from generalizeformer.adapters._entropy_descent import TOP_LAYERS, EntropyDescent, Settings
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.errors import ImageError
from generalizeformer.seeds import derive

ABOUT = About(
    paper="Lee et al., DeYO, ICLR 2024",
    moves="γ, β of norm layers, those of the last stage of ResNets and ViTs excepted",
    batch_norm="batch",
    keeps="γ, β, SGD's momentum, random numbers",
    answers="before",
    reference="no trace of Jhyun17/DeYO",
    needs="norm layers with γ, β that are not frozen; images of at least `patches` pixels a side",
)


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """The reference's values, made for ImageNet."""

    frozen: tuple[str, ...] = TOP_LAYERS
    entropy_margin: float = 0.5
    weight_margin: float = 0.4  # a share of log(classes), too
    threshold: float = 0.2  # of the fall in probability
    patches: int = 4  # per row and per column
    seed: int = 0  # of the shuffles

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight_margin >= 0:
            self._refuse("weight_margin", "it is a share of log(classes), from 0 to 1")
        if not -1 <= self.threshold <= 1:
            self._refuse("threshold", "it is a difference of probabilities, from -1 (all) to 1")
        if self.patches < 1:
            self._refuse("patches", "give at least 1, or 2 to destroy anything")


GRID: tuple[dict[str, Any], ...] = tuple({"threshold": value} for value in (0.2, 0.3, 0.5))
"""The reference's thresholds for its wild, mild and biased experiments; the default of its script first."""


class DeYO(EntropyDescent):
    """Entropy descent on images whose answer does not survive a shuffle of their patches."""

    name = "deyo"
    config: Config

    def reset(self) -> None:
        super().reset()
        self.generator = torch.Generator().manual_seed(derive(self.name, self.config.seed))

    def learn(self, images: Images) -> Logits:
        if min(images.shape[2:]) < self.config.patches:
            raise ImageError(
                f"deyo: got images of {images.shape[2]}x{images.shape[3]} pixels, too small for {self.config.patches} "
                "patches a side; give larger images, or set fewer patches"
            )
        with self._unchanged_if_refused():
            return super().learn(images)

    def update(self, images: Images) -> Logits:
        logits = self.answer(images)
        entropies = per_image_entropy(logits)
        sure = entropies < self.margin
        if sure.any():
            try:
                fall = self._fall(images[sure], logits[sure].detach())
            except ImageError as error:
                raise ImageError(self._alone(len(images))) from error
            self._teach(entropies[sure], fall)
        return logits

    def _teach(self, entropies: Float[Tensor, " sure"], fall: Float[Tensor, " sure"]) -> None:
        chosen = fall > self.config.threshold
        if not chosen.any():
            return
        entropies, fall = entropies[chosen], fall[chosen]
        margin = self.config.weight_margin * log(self.source.classes)
        weights = (margin - entropies.detach()).exp() + fall.exp()
        self.descend((weights * entropies).mean())

    @torch.no_grad()
    def _fall(self, images: Images, logits: Logits) -> Float[Tensor, " images"]:
        """How much less probable the predicted class is once the patches are shuffled."""
        shown = shuffled(images, self.config.patches, self.generator)
        label = logits.argmax(1, keepdim=True)
        before, after = logits.softmax(1), self.answer(shown).softmax(1)
        return (before.gather(1, label) - after.gather(1, label)).squeeze(1)

    def _alone(self, count: int) -> str:
        return (
            f"deyo: 1 of {count} images was sure, and shown by itself it leaves a BatchNorm layer with one value per "
            f"channel, which has no statistics; raise entropy_margin, which is {self.config.entropy_margin} (1 takes "
            "almost all images for sure), give larger batches, or use a model without such a layer"
        )

    @contextmanager
    def _unchanged_if_refused(self) -> Iterator[None]:
        drawn, before = self.generator.get_state(), None
        if self.config.steps > 1:  # a later step may refuse what an earlier one has learned from
            before = self.values(), copy.deepcopy(self.optimizer.state_dict())
        try:
            yield
        except ImageError:
            self.generator.set_state(drawn)
            if before is not None:
                self.put(before[0])
                self.optimizer.load_state_dict(before[1])
            raise


def shuffled(images: Images, patches: int, generator: torch.Generator) -> Images:
    """The images with their patches² tiles in an order of each one's own, resized where sides do not divide."""
    count, channels = images.shape[:2]
    high, wide = (side // patches for side in images.shape[2:])
    cut = _resized(images, (high * patches, wide * patches))
    tiles = cut.reshape(count, channels, patches, high, patches, wide).permute(0, 2, 4, 1, 3, 5)
    tiles = tiles.reshape(count, patches**2, channels, high, wide)
    # Drawn on the CPU, so that every device shuffles alike.
    order = torch.rand(count, patches**2, generator=generator).argsort(1).to(images.device)
    tiles = tiles[torch.arange(count, device=images.device).unsqueeze(1), order]
    tiles = tiles.reshape(count, patches, patches, channels, high, wide).permute(0, 3, 1, 4, 2, 5)
    return _resized(tiles.reshape(cut.shape), images.shape[2:])


def _resized(images: Images, size: Sequence[int]) -> Float[Tensor, "images channels high wide"]:
    if tuple(size) == tuple(images.shape[2:]):
        return images
    return F.interpolate(images, tuple(size), mode="bilinear", antialias=True)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return DeYO(source, config)
