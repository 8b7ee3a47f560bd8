"""The source model, unchanged: what every other method is compared with.

BN mode: the source's running statistics. Keeps nothing and needs nothing; each image is answered by itself.
"""

from dataclasses import dataclass

from generalizeformer.adapters._about import About
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Groups, Images, Logits

ABOUT = About(
    paper="none: the plain model, which all others are compared with",
    moves="nothing",
    batch_norm="source",
    keeps="nothing",
    answers="there is no update",
    reference="none",
    needs="nothing",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """There is nothing to choose."""


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    def answer(images: Images, groups: Groups | None) -> Logits:
        check_images(images, source.backbone)
        return source.network.run(images, grouping(groups, len(images), images), {}).logits

    return Stateless(answer)
