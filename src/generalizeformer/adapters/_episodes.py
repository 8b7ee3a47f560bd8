"""Methods that learn from one group of images, answer it, and forget it: nothing survives an answer."""

import copy
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import Grouping, grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Groups, Images, Logits


class Episodes(ABC):
    """Images and groups in, logits out, for such a method: it says what a copy becomes, and what an episode does.

    Every episode has a private copy of the source's backbone, in eval mode and without gradients, and drops it at
    its end, so that nothing can be restored wrongly. `learn` is called with gradients on, also inside a caller's
    no_grad or inference_mode. One episode after another: what else is in a call cannot change an answer.
    """

    def __init__(self, source: GeneralizeFormer) -> None:
        self.source = source
        self.copied()  # a model that cannot be served is refused now

    @abstractmethod
    def prepare(self, copied: nn.Module) -> None:
        """Puts the copy into the method's BN mode, and gradients on what moves."""

    @abstractmethod
    def learn(self, images: Images) -> Logits:
        """One episode: all updates, and the answer at the moment at which the method answers."""

    def episodes(self, together: Grouping) -> list[Tensor]:
        """The images of each episode, as rows; a group's, unless the method takes others."""
        return [(together.ids == group).nonzero()[:, 0] for group in range(len(together.sizes))]

    def copied(self) -> nn.Module:
        # As ordinary tensors even inside a caller's inference_mode.
        with torch.inference_mode(False):
            copied = copy.deepcopy(self.source.backbone).eval().requires_grad_(False)
            self.prepare(copied)
        return copied

    def __call__(self, images: Images, groups: Groups | None) -> Logits:
        check_images(images, self.source.backbone)
        rows = self.episodes(grouping(groups, len(images), images))
        with torch.inference_mode(False), torch.enable_grad():
            images = images.clone() if images.is_inference() else images.detach()
            answers = [self.learn(images[mine]).detach() for mine in rows]
        return torch.cat(answers)[torch.cat(rows).argsort()]
