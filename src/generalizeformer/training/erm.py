"""Empirical risk minimisation: cross-entropy over all source domains, equally many images of each.

Gulrajani & Lopez-Paz, 2021 (DomainBed). BatchNorm in train mode, running statistics kept, as the paper's
text demands ("moving average of the training statistics"). We add a learning-rate schedule.
"""

from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.episodes import minibatch
from generalizeformer.imaging.augmentation import Config as Augmentation
from generalizeformer.imaging.augmentation import augment
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.imaging.looks import apply as apply_looks
from generalizeformer.training._checks import check_counts, check_not_negative, check_positive
from generalizeformer.training._loop import Metrics
from generalizeformer.training._scoring import accuracy
from generalizeformer.training._start import placed
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


class Erm:
    """Trains the backbone it is given, in place."""

    def __init__(
        self,
        backbone: nn.Module,
        train: DomainDataset,
        validation: DomainDataset,
        preprocessing: Preprocessing,
        config: Config,
        fabric: Fabric,
    ) -> None:
        self.backbone = placed(backbone, fabric.device)
        self.data, self.validation, self.preprocessing = train, validation, preprocessing
        self.config, self.fabric = config, fabric
        self.optimizer = torch.optim.AdamW(
            self.backbone.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=fabric.device.type == "cuda" or None,
        )

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        schedule(self.optimizer, self.config, step)
        drawn = minibatch(self.data, self.config.per_domain, generator)
        pixels = drawn.images.to(self.fabric.device)
        if self.config.augmentation is not None:
            pixels = augment(pixels, generator, self.config.augmentation)
        if self.config.looks is not None:
            each = torch.arange(len(pixels), device=pixels.device)
            pixels = apply_looks(pixels, each, generator, self.config.looks)
        self.backbone.train()
        with self.fabric.autocast():
            logits = self.backbone(self.preprocessing(pixels))
            loss = F.cross_entropy(logits, drawn.labels.to(self.fabric.device))
        descend(self.fabric, self.optimizer, loss)
        share_buffers(self.fabric, self.backbone)
        return {"loss": loss.item()}

    def validate(self) -> Metrics:
        self.backbone.eval()
        scores = [
            accuracy(self._answer, domain, self.preprocessing, 1, self.fabric.device)
            for domain in self.validation.domains
        ]
        return {"score": sum(scores) / len(scores)}

    def state(self) -> dict[str, Any]:
        return {"backbone": self.backbone.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.backbone.load_state_dict(state["backbone"])
        self.optimizer.load_state_dict(state["optimizer"])

    def weights(self) -> dict[str, Tensor]:
        return self.backbone.state_dict()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.backbone.load_state_dict(weights)
        self.backbone.eval()

    def _answer(self, images: Tensor, groups: Tensor) -> Tensor:
        with self.fabric.autocast():
            return self.backbone(images)  # type: ignore[no-any-return]
