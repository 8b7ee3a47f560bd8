"""Methods that learn at test time: a private copy of the backbone, some of its parameters, and a loss downhill."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from generalizeformer.adapters._copies import private_copy
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.core.twins import unrun
from generalizeformer.errors import ImageError, SlotError


class Learner(ABC):
    """The protocol around such a method, which says what a batch does (`learn`), what it answers and how it begins.

    `learn` is called with gradients on, also inside a caller's no_grad or inference_mode.
    """

    name = "learner"  # of the method, for its errors
    episodic = False  # forget everything before each batch
    looked = False  # whether the copy ran without the model that was lent

    def __init__(self, source: GeneralizeFormer) -> None:
        self.source = source
        self.reset()

    @abstractmethod
    def learn(self, images: Images) -> Logits:
        """One batch: all updates, and the answer at the moment at which the method answers."""

    @abstractmethod
    def answer(self, images: Images) -> Logits:
        """The answer as the method is now; nothing is learned."""

    @abstractmethod
    def reset(self) -> None:
        """Begins anew from the source."""

    def step(self, images: Images) -> Logits:
        check_images(images, self.source.backbone)
        if self.episodic:
            self.reset()
        with self._watched(), torch.inference_mode(False), torch.enable_grad():
            images = images.clone() if images.is_inference() else images.detach()
            return self.learn(images).detach()

    @torch.no_grad()
    def predict(self, images: Images) -> Logits:
        check_images(images, self.source.backbone)
        with self._watched():
            return self.answer(images)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """The first time, the lent model is watched: what a copy does not own, a lambda for one, may still run it."""
        with nullcontext() if self.looked else unrun(self.source.backbone):
            yield
        self.looked = True


class CopyLearner(Learner):
    """One that moves parameters of a copy of the backbone, and says which (`release`) and how (`optimise`).

    The copy is made anew from the source at every reset, in eval mode and without gradients, so that nothing can
    be restored wrongly.
    """

    @abstractmethod
    def release(self, copied: nn.Module) -> list[nn.Parameter]:
        """Puts the copy into the method's BN mode; gives back what moves, with gradients required."""

    @abstractmethod
    def optimise(self, moving: list[nn.Parameter]) -> torch.optim.Optimizer: ...

    def answer(self, images: Images) -> Logits:
        """The copy's answer. A batch that its BatchNorm layers cannot take is refused in words."""
        try:
            return self.backbone(images)  # type: ignore[no-any-return]
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ImageError(
                f"{self.name}: {len(images)} image leaves a BatchNorm layer with one value per channel, and one "
                "value has no statistics; give at least 2 images per batch"
            ) from None

    def reset(self) -> None:
        # As ordinary tensors even inside a caller's inference_mode.
        with torch.inference_mode(False):
            self.backbone = private_copy(self.source.backbone)
            self.optimizer = self.optimise(self.release(self.backbone))


def released(layers: Iterable[nn.Module], method: str, kind: str) -> list[nn.Parameter]:
    """The layers' own parameters, now requiring gradients; refused where there are none of that kind."""
    moving = [value for layer in layers for value in layer.parameters(recurse=False)]
    if not moving:
        raise SlotError(
            f"{method}: the model has no {kind}, so there is nothing to adapt; try t3a or generalizeformer"
        )
    for value in moving:
        value.requires_grad_()
    return moving
