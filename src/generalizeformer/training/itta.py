"""ITTA's training: classes from plain and restyled features, and a consistency loss that learns to pull the same way.

Chen et al., CVPR 2023; the reference is github.com/liangchen527/ITTA. Each step has two parts. The backbone learns
from the cross-entropy of both branches and their consistency loss. Then, on the same images restyled anew, the
loss's weighting learns to make the gradient that the consistency loss gives the features like that of the
cross-entropy, both standardised; so second derivatives are needed. BatchNorm keeps the statistics of the source
model, whose scales and shifts learn like everything else; dropout is off. Ours starts from the finished source model,
theirs from ImageNet.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.companions._styles import draw_mixing
from generalizeformer.core.companions.itta import Online, Pace, Seen
from generalizeformer.core.companions.itta import build as build_network
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.shapes import Images
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.episodes import minibatch
from generalizeformer.imaging.augmentation import Config as Augmentation
from generalizeformer.training._checks import check_counts, check_not_negative, check_positive
from generalizeformer.training._loop import Metrics
from generalizeformer.training._network import NetworkTraining
from generalizeformer.training._together import average, descend

Scalar = Float[Tensor, ""]


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 5000
    per_domain: int = 32  # images of each source domain per step
    learning_rate: float = 5e-5  # of Adam, for backbone and classifier
    weighting_rate: float = 5e-6  # of Adam, for the weighting of the loss
    alignment: float = 0.1  # weight of the difference of gradients
    weight_decay: float = 0.0
    augmentation: Augmentation | None = None  # crops, flips and colours, drawn for every image
    every: int = 300  # steps between validations
    validation_size: int = 20  # images per batch of a validation, which adapts as at test time

    def __post_init__(self) -> None:
        counts = {"steps": self.steps, "per_domain": self.per_domain, "every": self.every}
        check_counts("itta", **counts, validation_size=self.validation_size)
        rates = {"learning_rate": self.learning_rate, "weighting_rate": self.weighting_rate}
        check_positive("itta", **rates, alignment=self.alignment)
        check_not_negative("itta", weight_decay=self.weight_decay)


class Itta(NetworkTraining):
    """Trains a network of its own, around a copy of the model's backbone."""

    def __init__(
        self,
        model: GeneralizeFormer,
        train: DomainDataset,
        validation: DomainDataset,
        preprocessing: Preprocessing,
        config: Config,
        fabric: Fabric,
    ) -> None:
        network = build_network(model.backbone, model.classes).requires_grad_().eval()
        super().__init__(network, train, validation, preprocessing, config, fabric)
        head = set(self.network.head.parameters())
        self.features = [p for p in self.network.backbone.parameters() if p not in head]
        moving = self.network.backbone.parameters()
        self.optimizer = self._adam(moving, config.learning_rate, config.weight_decay)
        self.weighting = self._adam(self.network.weighting.parameters(), config.weighting_rate)
        self.optimizers = {"optimizer": self.optimizer, "weighting": self.weighting}

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        drawn = minibatch(self.data, self.config.per_domain, generator)
        images, labels = self._images(drawn.images, generator), drawn.labels.to(self.fabric.device)
        consistency, classes = self._losses(images, labels, generator)
        descend(self.fabric, self.optimizer, consistency + classes)
        difference = self._align(*self._losses(images, labels, generator))
        return {
            "loss": classes.item(),
            "consistency": consistency.item(),
            "difference": difference.item(),
        }

    def _losses(
        self, images: Images, labels: Int64[Tensor, " images"], generator: torch.Generator
    ) -> tuple[Scalar, Scalar]:
        """The consistency loss, and the cross-entropy of both branches, with styles drawn anew."""
        mixing = draw_mixing(images, generator)
        with self.fabric.autocast():
            clean: Seen = self.network(images)
            mixed: Seen = self.network(images, mixing)
            consistency = self.network.inconsistency(clean.features, mixed.features)
            classes = F.cross_entropy(clean.logits, labels) + F.cross_entropy(mixed.logits, labels)
        return consistency, classes

    def _align(self, consistency: Scalar, classes: Scalar) -> Scalar:
        """A step of the weighting towards gradients alike; gives back how different they were."""
        wanted = self._gradient(classes, create_graph=False)
        given = self._gradient(consistency, create_graph=True)
        difference = (_standardised(given) - _standardised(wanted)).square().mean()
        moving = list(self.network.weighting.parameters())
        gradients = torch.autograd.grad(self.config.alignment * difference, moving)
        average(self.fabric, gradients)
        for value, gradient in zip(moving, gradients, strict=True):
            value.grad = gradient
        self.weighting.step()
        return difference.detach()

    def _gradient(self, loss: Scalar, create_graph: bool) -> Float[Tensor, " elements"]:
        """Of the loss in all parameters before the classifier, as one long vector."""
        gradients = torch.autograd.grad(
            loss,
            self.features,
            retain_graph=True,
            create_graph=create_graph,
            materialize_grads=True,
        )
        return torch.cat([gradient.flatten() for gradient in gradients])

    def _accuracy(self, domain: Domain) -> float:
        """Of a stream that the maps adapt to."""
        online = Online(self.network, Pace())
        return self._streamed(domain, online.learn, online.answer)


def _standardised(values: Float[Tensor, " elements"]) -> Float[Tensor, " elements"]:
    """Minus their mean, over their spread, both as constants; without a spread, they are only centred."""
    spread = values.detach().std()
    return (values - values.detach().mean()) / torch.where(spread > 0, spread, 1)


build = Itta
