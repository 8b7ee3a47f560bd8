"""The source model's mean answer to an image and to its mirror image: what looking twice gives without adapting.

A control, as GeneralizeFormer can look at mirrored images too (`Config.mirrored`). BN mode: the source's running
statistics. Keeps nothing; each image is answered by itself.
"""

from dataclasses import dataclass

from generalizeformer.adapters._about import About
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.mixture import mixture
from generalizeformer.core.shapes import Groups, Images, Logits

ABOUT = About(
    paper="none: a control, the plain model that looks twice",
    moves="nothing",
    batch_norm="source",
    keeps="nothing",
    answers="there is no update",
    reference="none",
    needs="a model that learned from mirrored images",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """There is nothing to choose."""


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    def answer(images: Images, groups: Groups | None) -> Logits:
        check_images(images, source.backbone)
        together = grouping(groups, len(images), images)
        views = (images, images.flip(-1))
        answers = [source.network.run(view, together, {}).logits for view in views]
        return mixture(answers, "logits")

    return Stateless(answer)
