"""Single-sample generalization: a domain at a time plays the target, and each of its images has a classifier written.

Xiao et al., 2022; reference: github.com/zzzx1224/SingleSampleGeneralization-ICLR2022, pacs_code/pacs_main.py. A step
draws a source domain as the meta-target, a batch of its images, and some context images of every class and domain,
whose mean features are the class centres. Rows written from the other domains' centres and an image's descriptor
must answer that image; so must rows written from the centres of the domain itself, which the former are drawn to.
Gradients flow through the centres. The whole network learns, the backbone at a share of the rate.

Deviations. The network starts from the finished source model, not from ImageNet. Validation is as at test time, with
the centres of all sources, on held-out images of the sources only: the reference also validates on the target, with
images that are then tested. Its batches and augmentation can be chosen; the latter is off unless asked for. With one
source domain, that is meta-source and meta-target at once; a class that a domain lacks has its centre from the others.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.companions.single_sample import answers
from generalizeformer.core.companions.single_sample import build as build_network
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.shapes import Images
from generalizeformer.data.domains import DomainDataset
from generalizeformer.imaging.augmentation import Config as Augmentation
from generalizeformer.training._checks import (
    check_counts,
    check_not_negative,
    check_positive,
    check_shares,
)
from generalizeformer.training._class_context import ClassContext
from generalizeformer.training._loop import Metrics
from generalizeformer.training._network import NetworkTraining
from generalizeformer.training._scoring import CHUNK
from generalizeformer.training._together import descend, share_buffers

FLOOR = 1e-6  # added to variances in the divergence, as in the reference


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 10_000
    images: int = 128  # of the meta-target per step
    context: int = 10  # images of each class and domain per step
    draws: int = 10  # of class centres and of classifiers
    prior: float = 1.0  # weight of the loss under rows from the domain's own centres
    divergence: float = 1e-5  # weight of the sum over images, classes and features
    learning_rate: float = 1e-4
    backbone_share: float = 0.5  # of the learning rate
    weight_decay: float = 5e-4
    drop_at: float = 0.6  # share of the steps after which the learning rate is a tenth
    augmentation: Augmentation | None = None  # crops, flips and colours, drawn for every image
    centre_images: int = 100  # of each class and domain, at most, that test time's centres are of
    every: int = 250  # steps between validations

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("steps", "images", "context", "draws")}
        check_counts("single_sample", **counts, centre_images=self.centre_images, every=self.every)
        check_shares("single_sample", backbone_share=self.backbone_share, drop_at=self.drop_at)
        check_positive("single_sample", learning_rate=self.learning_rate)
        weights = {"prior": self.prior, "divergence": self.divergence}
        check_not_negative("single_sample", **weights, weight_decay=self.weight_decay)


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
        self.context = ClassContext(train)
        backbone = list(network.backbone.parameters())
        inside = {id(value) for value in backbone}
        others = [value for value in network.parameters() if id(value) not in inside]
        parts = [{"params": backbone}, {"params": others}]
        self.optimizer = self._adam(parts, config.learning_rate, config.weight_decay)
        self.optimizers = {"optimizer": self.optimizer}

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        self._schedule(step)
        target = int(torch.randint(len(self.data.domains), (1,), generator=generator))
        images, labels = self._batch(target, generator)
        places, cells = self.context.draw(self.config.context, generator)
        context = self._images(self.data.pick(places)[0], generator)
        seed = int(torch.randint(2**62, (1,), generator=generator))
        noise = torch.Generator(self.fabric.device).manual_seed(seed)
        self.network.train()
        with self.fabric.autocast():
            centres = self.context.centres(self.network.observe(context)[0], cells)
            parts = self._losses(images, labels, centres, target, noise)
            loss = parts["written"] + self.config.prior * parts["expected"]
            loss = loss + self.config.divergence * parts["divergence"]
        descend(self.fabric, self.optimizer, loss)
        share_buffers(self.fabric, self.network)
        return {"loss": loss.item()} | {name: part.item() for name, part in parts.items()}

    def _losses(
        self,
        images: Images,
        labels: Int64[Tensor, " images"],
        centres: Float[Tensor, "domains classes feature"],
        target: int,
        noise: torch.Generator,
    ) -> dict[str, Tensor]:
        network, draws = self.network, self.config.draws
        others = [number for number in range(len(centres)) if number != target] or [target]
        known = network.known(centres[others].mean(0), draws, noise)
        features, descriptors = network.observe(images)
        written = network.written(descriptors, known)
        expected = network.expected(centres[target])
        apart = written.divergence_from(expected, FLOOR).sum()
        wanted = labels.expand(draws, -1).flatten()
        own = answers(features, written.sample(draws, noise)).flatten(0, 1)
        rows = expected.sample(draws, noise)  # the same for all images
        given = F.linear(features.to(rows.dtype), rows.flatten(0, 1))
        given = given.reshape(len(images), draws, -1).transpose(0, 1).flatten(0, 1)
        return {
            "written": F.cross_entropy(own, wanted),
            "expected": F.cross_entropy(given, wanted),
            "divergence": apart,
        }

    def validate(self) -> Metrics:
        """With the centres of all sources, which are renewed first and then are part of the weights."""
        self.network.eval()
        self._renew_centres()
        return super().validate()

    def _batch(self, target: int, generator: torch.Generator) -> tuple[Images, Tensor]:
        domain = self.data.domains[target]
        places = torch.randint(len(domain), (self.config.images,), generator=generator)
        labels = domain.labels[places.to(domain.labels.device)].to(self.fabric.device)
        return self._images(domain.read(places), generator), labels

    def _schedule(self, step: int) -> None:
        factor = 1.0 if step < self.config.drop_at * self.config.steps else 0.1
        backbone, others = self.optimizer.param_groups
        others["lr"] = self.config.learning_rate * factor
        backbone["lr"] = others["lr"] * self.config.backbone_share

    @torch.no_grad()
    def _renew_centres(self) -> None:
        places, cells = self.context.spread(self.config.centre_images)
        features = [self._features(self.data.pick(part)[0]) for part in torch.split(places, CHUNK)]
        self.network.centres.copy_(self.context.centres(torch.cat(features), cells).mean(0))

    def _features(self, pixels: Tensor) -> Tensor:
        with self.fabric.autocast():
            images = self.preprocessing(pixels.to(self.fabric.device))
            return self.network.observe(images)[0]  # type: ignore[no-any-return]


build = Training
