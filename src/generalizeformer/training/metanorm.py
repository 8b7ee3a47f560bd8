"""MetaNorm: a domain at a time plays the target, and each of its images must do with statistics inferred from itself.

Du et al., 2021. A step draws a source domain as the meta-target. Its images are answered by their own inferred
statistics, the others by the usual BatchNorm; the loss is both cross-entropies and λ times the divergence of every
image's inferred statistics from those of all drawn images of its domain. The whole network learns.

There is no published code. Ours: the divergence is a mean over channels (a sum over the thousands of a deep network
leaves nothing of the cross-entropies, and destroyed EfficientNet-Lite0 within 75 steps), λ, the optimiser and its
settings; a start from the finished source model; and with one source domain, which is meta-source and meta-target at
once.
"""

from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch.nn import functional as F

from generalizeformer.core.companions.metanorm import build as build_network
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.episodes import minibatch
from generalizeformer.imaging.augmentation import Config as Augmentation
from generalizeformer.training._checks import check_counts, check_not_negative, check_positive
from generalizeformer.training._loop import Metrics
from generalizeformer.training._network import NetworkTraining
from generalizeformer.training._together import Schedule, descend, schedule, share_buffers


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 2000
    per_domain: int = 32  # images of each source domain per step
    divergence: float = 0.1  # λ, of the mean over all channels of all layers
    learning_rate: float = 1e-4
    weight_decay: float = 1e-4
    schedule: Schedule = "cosine"
    augmentation: Augmentation | None = None  # crops, flips and colours, drawn for every image
    every: int = 100  # steps between validations

    def __post_init__(self) -> None:
        check_counts("metanorm", steps=self.steps, per_domain=self.per_domain, every=self.every)
        check_positive("metanorm", learning_rate=self.learning_rate)
        check_not_negative("metanorm", divergence=self.divergence, weight_decay=self.weight_decay)


class Training(NetworkTraining):
    """Trains a network of its own around a copy of the backbone."""

    def __init__(
        self,
        model: GeneralizeFormer,
        train: DomainDataset,
        validation: DomainDataset,
        preprocessing: Preprocessing,
        config: Config,
        fabric: Fabric,
    ) -> None:
        network = build_network(model.backbone, model.classes).requires_grad_()
        super().__init__(network, train, validation, preprocessing, config, fabric)
        self.optimizer = torch.optim.AdamW(
            network.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=fabric.device.type == "cuda" or None,
        )
        self.optimizers = {"optimizer": self.optimizer}

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        schedule(self.optimizer, self.config, step)
        target = int(torch.randint(len(self.data.domains), (1,), generator=generator))
        drawn = minibatch(self.data, self.config.per_domain, generator)
        images, labels = self._images(drawn.images, generator), drawn.labels.to(self.fabric.device)
        mine = (drawn.domains == target).to(self.fabric.device)
        others = mine if mine.all() else ~mine
        self.network.train()
        with self.fabric.autocast():
            usual = F.cross_entropy(self.network.usual(images[others]), labels[others])
            logits, divergence = self.network.compared(images[mine])
            inferred = F.cross_entropy(logits, labels[mine])
            loss = usual + inferred + self.config.divergence * divergence
        descend(self.fabric, self.optimizer, loss)
        share_buffers(self.fabric, self.network)
        parts = {"loss": loss, "inferred": inferred, "divergence": divergence}
        return {name: part.item() for name, part in parts.items()}


build = Training
