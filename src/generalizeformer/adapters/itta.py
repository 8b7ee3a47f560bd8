"""Small maps inserted after the stages of the network follow a consistency loss that was learned from the sources.

Chen, Zhang, Song, Shan and Liu, "Improved test-time adaptation for domain generalization" (ITTA), CVPR 2023.
Reference: github.com/liangchen527/ITTA, domainbed/algorithms.py and networks.py.

Has to be trained for (training/itta.py): it answers with its own copy of the backbone and its own weighting of the
loss. For each batch the features are computed twice, plainly and with the styles of other images of the batch mixed
in after the first or second stage (MixStyle); the weighted difference, squared, moves the maps once with Adam.
BN mode: the source's running statistics, throughout. Answers after its update. Keeps the maps and Adam's moments.
Needs a backbone with convolutions, and images of one size, since a map has a scale and a shift for every element.

A single image has no partner to mix styles with, so both branches agree and there is nothing to learn from: it is
answered with what earlier batches taught, and neither the maps nor Adam's moments move. The reference's evaluation,
in batches of one, is therefore its trained network alone.

Deviations. The maps begin anew at every reset; the reference never resets them, and also lets them learn on the
splits that it validates on. They sit after the last module of each of the last four resolutions, found by running
one image (for a ResNet: after layer1 to layer4, as in the reference, which serves ResNet-18 alone). What is negative
in a feature map passes them unchanged, so that new maps change nothing also where maps are not the output of a ReLU.
Adam's ε decides how much the small weight of the loss slows the maps down, as in the reference. Dropout is off.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch

from generalizeformer.adapters._about import About
from generalizeformer.adapters._companion import companion
from generalizeformer.adapters._learner import Learner
from generalizeformer.adapters._protocol import Adapter
from generalizeformer.core.companions.itta import Itta as Network
from generalizeformer.core.companions.itta import Online, Pace
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.shapes import Images, Logits

ABOUT = About(
    paper="Chen et al., Improved test-time adaptation (ITTA), CVPR 2023",
    moves="small maps inserted after the stages",
    batch_norm="source",
    keeps="the maps, Adam's moments",
    answers="after",
    reference="no trace of liangchen527/ITTA",
    needs="training for it; convolutions; images of one size; 2 images per batch to learn",
)


@dataclass(frozen=True, kw_only=True)
class Config(Pace):
    """How the maps learn: the reference's settings for photographs."""


GRID: tuple[dict[str, Any], ...] = (
    {"learning_rate": 5e-6, "loss_weight": 1e-6},
    {"learning_rate": 1e-4, "loss_weight": 1e-6},
    {"learning_rate": 5e-6, "loss_weight": 0.1},
)
"""No grid was published; these are the reference's settings for photographs, for small images and for DomainNet."""


class ITTA(Learner):
    """The trained network, which stays as it is, and maps that learn."""

    name = "itta"

    def __init__(self, source: GeneralizeFormer, config: Config) -> None:
        self.config = config
        # As ordinary tensors even inside a caller's inference_mode.
        with torch.inference_mode(False):
            self.network = cast(Network, companion(source, self.name))
        super().__init__(source)

    def learn(self, images: Images) -> Logits:
        self.online.learn(images)
        with torch.no_grad():
            return self.online.answer(images)

    def answer(self, images: Images) -> Logits:
        return self.online.answer(images)

    def reset(self) -> None:
        self.online = Online(self.network, self.config)


def build(source: GeneralizeFormer, config: Config) -> Adapter:
    return ITTA(source, config)
