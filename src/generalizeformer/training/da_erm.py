"""DA-ERM's training: first a network that tells domains apart, then one that tells classes, given the domain.

Dubey et al., CVPR 2021. Domains: a prototypical loss; of every domain in a step some images make its mean, and the
others are to be nearest to it, by squared distance. With `mixup` every step has as many domains again, each a mixture
of two with a weight between 0.2 and 0.8. Classes: the embeddings of the source domains are made once, without
gradients, from images spread over each; then cross-entropy. BatchNorm is in train mode in whichever network learns.
The settings are those of a public port to DomainBed; it says nothing of the number of steps, which is ours, as is how
many images make an embedding. Its `embedding_rate` needs its many steps: in a few hundred it moves no weight by more
than a few 1e-4, so give a short training a larger one. Ours starts from the finished source model, theirs from
ImageNet, and we have no MMD penalty, which theirs can add.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.companions.da_erm import Embedding, Online
from generalizeformer.core.companions.da_erm import build as build_network
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.shapes import Images
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.episodes import Minibatch, minibatch
from generalizeformer.errors import DataError, UserError
from generalizeformer.imaging.augmentation import Config as Augmentation
from generalizeformer.training._checks import check_counts, check_not_negative, check_positive
from generalizeformer.training._domain_prototypes import mixed_domains, prototypical_loss
from generalizeformer.training._loop import Metrics
from generalizeformer.training._network import NetworkTraining
from generalizeformer.training._scoring import CHUNK, accuracy
from generalizeformer.training._together import Schedule, descend, schedule, share_buffers


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 5000  # of both parts together
    embedding_share: float = 0.2  # of the steps: for telling domains apart
    per_domain: int = 12  # images of each source domain per step
    support_share: float = 0.2  # of those: for the mean of their domain
    mixup: bool = True  # mixtures of two domains as further domains
    embedding_rate: float = 1e-6  # of Adam, for telling domains apart
    embedding_decay: float = 1e-5
    learning_rate: float = 1e-4  # of Adam, for telling classes apart
    weight_decay: float = 1e-4
    schedule: Schedule = "cosine"  # of either part
    images: int = 300  # of each domain that its embedding is made of
    augmentation: Augmentation | None = None  # crops, flips and colours, drawn for every image
    every: int = 300  # steps between validations
    validation_size: int = 20  # images per batch of a validation, which goes as at test time

    def __post_init__(self) -> None:
        counts = {"every": self.every, "images": self.images}
        check_counts("da_erm", **counts, validation_size=self.validation_size)
        check_positive(
            "da_erm", embedding_rate=self.embedding_rate, learning_rate=self.learning_rate
        )
        check_not_negative(
            "da_erm", embedding_decay=self.embedding_decay, weight_decay=self.weight_decay
        )
        for name in ("steps", "per_domain"):
            if getattr(self, name) < 2:
                raise UserError(f"da_erm: {name} is {getattr(self, name)}; it must be at least 2")
        for name in ("embedding_share", "support_share"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(
                    f"da_erm: {name} is {getattr(self, name)}; it must be above 0 and below 1"
                )

    @property
    def embedding_steps(self) -> int:
        return _part(self.steps, self.embedding_share)

    @property
    def supports(self) -> int:
        return _part(self.per_domain, self.support_share)


@dataclass(frozen=True)
class Pace:
    """The learning rate of one part."""

    steps: int
    learning_rate: float
    schedule: Schedule


class DaErm(NetworkTraining):
    """Trains networks of its own, around copies of the model's backbone."""

    def __init__(
        self,
        model: GeneralizeFormer,
        train: DomainDataset,
        validation: DomainDataset,
        preprocessing: Preprocessing,
        config: Config,
        fabric: Fabric,
    ) -> None:
        check(train)
        network = build_network(model.backbone, model.classes).requires_grad_()
        super().__init__(network, train, validation, preprocessing, config, fabric)
        own = list(self.network.embedder.parameters())
        others = [p for p in self.network.parameters() if all(p is not value for value in own)]
        self.embedding = self._adam(own, config.embedding_rate, config.embedding_decay)
        self.optimizer = self._adam(others, config.learning_rate, config.weight_decay)
        self.optimizers = {"embedding": self.embedding, "optimizer": self.optimizer}
        self.domains: Float[Tensor, "domains embedding"] | None = None  # once they are told apart

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        drawn = minibatch(self.data, self.config.per_domain, generator)
        images, first = self._images(drawn.images, generator), self.config.embedding_steps
        if step < first:
            return self._tell_domains(step, images, generator)
        if self.domains is None:
            self.domains = torch.stack([self._embedding_of(d) for d in self.data.domains])
        return self._tell_classes(step - first, images, drawn, self.domains)

    def validate(self) -> Metrics:
        """Accuracy on streams of each domain. While domains are learned: how many images are nearest to their own.

        The latter is always below the former: weights of a half-trained network are never the best.
        """
        if self.domains is not None:
            return super().validate()
        self.network.eval()
        told = self._domain_accuracy()
        return {"domain_accuracy": told, "score": told - 200}

    def state(self) -> dict[str, Any]:
        return super().state() | {"domains": self.domains}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        domains = state["domains"]
        self.domains = None if domains is None else domains.to(self.fabric.device)

    def _tell_domains(self, step: int, images: Images, generator: torch.Generator) -> Metrics:
        config = self.config
        pace = Pace(config.embedding_steps, config.embedding_rate, config.schedule)
        schedule(self.embedding, pace, step)
        if config.mixup:
            images = torch.cat([images, mixed_domains(images, config.per_domain, generator)])
        self.network.train()
        with self.fabric.autocast():
            embedded = self.network.embed(images)
            loss = prototypical_loss(embedded, config.per_domain, config.supports)
        descend(self.fabric, self.embedding, loss)
        share_buffers(self.fabric, self.network)
        return {"domain_loss": loss.item()}

    def _tell_classes(
        self,
        step: int,
        images: Images,
        drawn: Minibatch,
        domains: Float[Tensor, "domains embedding"],
    ) -> Metrics:
        config, device = self.config, self.fabric.device
        left = config.steps - config.embedding_steps
        schedule(self.optimizer, Pace(left, config.learning_rate, config.schedule), step)
        self.network.train()
        with self.fabric.autocast():
            logits = self.network(images, domains[drawn.domains.to(device)])
            loss = F.cross_entropy(logits, drawn.labels.to(device))
        descend(self.fabric, self.optimizer, loss)
        share_buffers(self.fabric, self.network)
        return {"loss": loss.item()}

    @torch.no_grad()
    def _embedding_of(self, domain: Domain) -> Embedding:
        """The mean over images spread evenly: stored images are often sorted by class."""
        self.network.eval()
        count = min(self.config.images, len(domain))
        online = Online(self.network, None)
        for part in torch.split(torch.linspace(0, len(domain) - 1, count).long(), CHUNK):
            with self.fabric.autocast():
                online.see(self.preprocessing(domain.read(part).to(self.fabric.device)))
        assert online.embedding is not None
        return online.embedding

    def _accuracy(self, domain: Domain) -> float:
        online = Online(self.network, self.config.images)
        return self._streamed(domain, online.see, online.answer)

    def _domain_accuracy(self) -> float:
        means = torch.stack([self._embedding_of(domain) for domain in self.data.domains])

        def answer(images: Tensor, groups: Tensor) -> Tensor:
            with self.fabric.autocast():
                return -torch.cdist(self.network.embed(images), means)

        scores = []
        for name in self.validation.names:
            domain, number = self.validation[name], self.data.index(name)
            asked = replace(domain, labels=torch.full_like(domain.labels, number))
            scores.append(accuracy(answer, asked, self.preprocessing, 1, self.fabric.device))
        return sum(scores) / len(scores)


def _part(whole: int, share: float) -> int:
    """That share of the whole, but neither nothing nor all of it."""
    return min(max(int(whole * share), 1), whole - 1)


def check(sources: DomainDataset) -> None:
    """Raises where there is only one domain."""
    if len(sources.names) < 2:
        raise DataError(
            f"da_erm: it learns to tell domains apart, and {sources.names[0]!r} is the only one; give two or more"
        )


build = DaErm
