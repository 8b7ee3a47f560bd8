"""A classifier that is told its domain: an embedding of the target, made from its own unlabelled images.

Dubey, Ramanathan, Pentland and Mahajan, "Adaptive methods for real-world domain generalization" (DA-ERM), CVPR 2021.
No code of the authors is public; architecture and settings are those of a public port to DomainBed.

Has to be trained for (training/da_erm.py): it answers with two networks of its own. The first embeds domains, and the
mean of what it gives for the images of a domain is that domain's embedding; the second tells the classes from its
features and the embedding. Nothing learns at test time. BN mode: the source's running statistics. Answers after its
update: a batch's own images are counted into the embedding before it is answered. Keeps the embedding. Needs a linear
classifier, which is replaced, and twice the memory of the backbone. A single image is served.

Deviations. This is our online reading: the embedding is the running mean over the target images seen so far, until
`images` of them are counted, and stays as it is from then on. The paper's is transductive: it embeds images of the
target before it answers any of them; that is not offered. `predict` answers with the embedding so far, and before any
image was counted with that of the images it is given. There is nothing published to search at test time.
"""

from dataclasses import dataclass
from typing import cast

import torch

from generalizeformer.adapters._about import About
from generalizeformer.adapters._companion import companion
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.companions.da_erm import DaErm as Network
from generalizeformer.core.companions.da_erm import Online
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.inputs import check_images
from generalizeformer.core.shapes import Images, Logits
from generalizeformer.errors import UserError

ABOUT = About(
    paper="Dubey et al., Adaptive methods for real-world domain generalization (DA-ERM), CVPR 2021; online form",
    moves="nothing; an embedding of the domain is an input",
    batch_norm="source",
    keeps="the embedding",
    answers="after",
    reference="none",
    needs="training for it; linear classifier",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    images: int | None = 300  # that the embedding is the mean of; None counts all that come

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(f"da_erm: images is {self.images}; give at least 1, or None for all")


class DAERM:
    """The trained networks, which stay as they are, and the target's embedding."""

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.source, self.config = source, config
        # As ordinary tensors even inside a caller's inference_mode.
        with torch.inference_mode(False):
            self.network = cast(Network, companion(source, "da_erm"))
        self.reset()

    def step(self, images: Images) -> Logits:
        check_images(images, self.source.backbone)
        self.online.see(images)
        return self.online.answer(images)

    def predict(self, images: Images) -> Logits:
        check_images(images, self.source.backbone)
        return self.online.answer(images)

    def reset(self) -> None:
        self.online = Online(self.network, self.config.images)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return DAERM(source, config)
