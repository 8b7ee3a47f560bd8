"""Every image normalised by statistics that small networks infer from it; nothing is learned at test time.

Du, Zhen, Shao and Snoek, "MetaNorm: learning to normalize few-shot batches across domains", ICLR 2021, the part on
domain generalization. No reference: the authors' repository is empty, so the networks and their training
(core/companions/metanorm.py, training/metanorm.py) follow the paper's description, and our choices are named there.

BN mode: each image by its own inferred mean and variance. Keeps nothing, so each image is answered alike in whatever
company. Needs BatchNorm layers, and a model trained with `generalizeformer train --also metanorm`.

Deviations. The inferring networks speak of differences from the source's running statistics, so that a network
that has learned nothing is the source model. Variances stay positive as a bounded factor of the source's. There is
nothing to search at test time.
"""

from dataclasses import dataclass

from generalizeformer.adapters._about import About
from generalizeformer.adapters._companion import companion
from generalizeformer.adapters._protocol import GroupedAdapter
from generalizeformer.adapters._stateless import Stateless
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Groups, Images, Logits

ABOUT = About(
    paper="Du et al., MetaNorm, ICLR 2021",
    moves="nothing; statistics are inferred for each image",
    batch_norm="each image's, inferred",
    keeps="nothing",
    answers="there is no update",
    reference="none",
    needs="training for it; BatchNorm",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """There is nothing to choose at test time."""


def build(source: GeneralizeFormer, config: Config) -> GroupedAdapter:
    network = companion(source, "metanorm")

    def answer(images: Images, groups: Groups | None) -> Logits:
        check_images(images, source.backbone)
        grouping(
            groups, len(images), images
        )  # refuses ids that do not fit; no image needs its group
        return network(images)  # type: ignore[no-any-return]

    return Stateless(answer)
