"""Methods that learn from one group of images, answer it, and forget it: nothing survives an answer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from generalizeformer.adapters._copies import private_copy
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import Grouping, grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Groups, Images, Logits
from generalizeformer.core.twins import unrun


class Episodes(ABC):
    """Images and groups in, logits out, for such a method: it says what a copy becomes, and what an episode does.

    Every call has private copies of the source's backbone, in eval mode and without gradients, and drops them at its
    end, so that nothing can be restored wrongly, and calls of several threads cannot meet. `learn` is called with
    gradients on, also inside a caller's no_grad or inference_mode. One episode after another: what else is in a call
    cannot change an answer.
    """

    def __init__(self, source: GeneralizeFormer) -> None:
        self.source, self.looked = source, False
        self.copied()  # a model that cannot be served is refused now

    @abstractmethod
    def prepare(self, copied: nn.Module) -> nn.Module:
        """The copy in the method's BN mode, with gradients on what moves."""

    @abstractmethod
    def learn(self, network: nn.Module, images: Images) -> Logits:
        """One episode: all updates, and the answer at the moment at which the method answers."""

    def networks(self) -> Iterator[nn.Module]:
        """For each episode of a call its network: a copy of its own, unless the method writes to none."""
        while True:
            yield self.copied()

    def episodes(self, together: Grouping) -> list[Tensor]:
        """The images of each episode, as rows; a group's, unless the method takes others."""
        return [(together.ids == group).nonzero()[:, 0] for group in range(len(together.sizes))]

    def copied(self) -> nn.Module:
        # As ordinary tensors even inside a caller's inference_mode.
        with torch.inference_mode(False):
            return self.prepare(private_copy(self.source.backbone))

    def __call__(self, images: Images, groups: Groups | None) -> Logits:
        check_images(images, self.source.backbone)
        rows = self.episodes(grouping(groups, len(images), images))
        alone = nullcontext() if self.looked else unrun(self.source.backbone)  # as for a `Learner`
        with alone, torch.inference_mode(False), torch.enable_grad():
            images = images.clone() if images.is_inference() else images.detach()
            pairs = zip(rows, self.networks(), strict=False)
            answers = [self.learn(network, images[mine]).detach() for mine, network in pairs]
        self.looked = True
        return torch.cat(answers)[torch.cat(rows).argsort()]
