"""The source model, unchanged: what every other method is compared with.

BN mode: the source's running statistics. Keeps nothing and needs nothing; each image is answered by itself.
"""

from dataclasses import dataclass

import torch

from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Groups, Images, Logits


@dataclass(frozen=True, kw_only=True)
class Config:
    """There is nothing to choose."""


class Source:
    """The backbone in eval mode, whatever mode it was lent in."""

    def __init__(self, source: GeneralizeFormer) -> None:
        self.source = source

    def step(self, images: Images) -> Logits:
        return self._answer(images, None)

    def predict(self, images: Images) -> Logits:
        return self._answer(images, None)

    def predict_groups(self, images: Images, groups: Groups) -> Logits:
        return self._answer(images, groups)

    def reset(self) -> None:
        pass

    @torch.no_grad()
    def _answer(self, images: Images, groups: Groups | None) -> Logits:
        check_images(images, self.source.backbone)
        return self.source.network.run(images, grouping(groups, len(images), images), {}).logits


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    return Source(source)
