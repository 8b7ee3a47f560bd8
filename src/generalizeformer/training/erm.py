"""Empirical risk minimisation: cross-entropy over all source domains, equally many images of each.

Gulrajani & Lopez-Paz, 2021 (DomainBed). BatchNorm in train mode, running statistics kept, as the paper's
text demands ("moving average of the training statistics"). We add a learning-rate schedule.
"""

from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.episodes import minibatch
from generalizeformer.imaging.augmentation import Config as Augmentation
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.imaging.looks import apply as apply_looks
from generalizeformer.training._checks import check_counts, check_not_negative, check_positive
from generalizeformer.training._loop import Metrics
from generalizeformer.training._network import NetworkTraining
from generalizeformer.training._together import Schedule, descend, schedule, share_buffers


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 1000
    per_domain: int = 32  # images of each source domain per step
    learning_rate: float = 1e-4
    weight_decay: float = 1e-4
    schedule: Schedule = "cosine"
    augmentation: Augmentation | None = None  # crops, flips and colours, drawn for every image
    looks: Looks | None = None  # random looks as augmentation, one per image
    every: int = 100  # steps between validations

    def __post_init__(self) -> None:
        check_counts("erm", steps=self.steps, per_domain=self.per_domain, every=self.every)
        check_positive("erm", learning_rate=self.learning_rate)
        check_not_negative("erm", weight_decay=self.weight_decay)


class Erm(NetworkTraining):
    """Trains the backbone it is given, in place; what is frozen in it stays so."""

    stored_as = "backbone"

    def __init__(
        self,
        backbone: nn.Module,
        train: DomainDataset,
        validation: DomainDataset,
        preprocessing: Preprocessing,
        config: Config,
        fabric: Fabric,
    ) -> None:
        super().__init__(backbone, train, validation, preprocessing, config, fabric)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=fabric.device.type == "cuda" or None,
        )
        self.optimizers = {"optimizer": self.optimizer}

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        schedule(self.optimizer, self.config, step)
        drawn = minibatch(self.data, self.config.per_domain, generator)
        images, labels = self._images(drawn.images, generator), drawn.labels.to(self.fabric.device)
        self.network.train()
        with self.fabric.autocast():
            loss = F.cross_entropy(self.network(images), labels)
        descend(self.fabric, self.optimizer, loss)
        share_buffers(self.fabric, self.network)
        return {"loss": loss.item()}

    def _augmented(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        pixels = super()._augmented(pixels, generator)
        if self.config.looks is None:
            return pixels
        each = torch.arange(len(pixels), device=pixels.device)
        return apply_looks(pixels, each, generator, self.config.looks)
