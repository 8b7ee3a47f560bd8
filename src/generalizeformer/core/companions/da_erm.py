"""DA-ERM's network: one backbone that embeds domains, and one that tells classes when it is told the domain.

Dubey et al., "Adaptive methods for real-world domain generalization", CVPR 2021. A domain's embedding is the mean of
what the first network makes of its images. The second network's features and that embedding, side by side, go through
a bottleneck to the classes.
"""

import copy
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from generalizeformer.core.classifiers import class_count, find_classifier
from generalizeformer.core.companions._own_draws import own_draws
from generalizeformer.core.shapes import Features, Images, Logits
from generalizeformer.errors import SlotError

BOTTLENECK = 1024  # units before the classes

Embedding = Float[Tensor, " embedding"]
Embeddings = Float[Tensor, "images embedding"]


class DaErm(nn.Module):
    """Two copies of the backbone, each with a linear layer between ReLUs in place of its classifier."""

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        name = find_classifier(backbone)
        if class_count(backbone, name) != classes:
            raise SlotError(
                f"da_erm: the classifier {name!r} does not tell {classes} classes apart; give the model a classifier "
                "that is its last Linear layer"
            )
        head = cast(nn.Linear, backbone.get_submodule(name))
        width, embedding = head.in_features, max(1, head.in_features // 4)
        self.embedder = _headed(backbone, name, embedding)
        self.featurizer = _headed(backbone, name, width)
        self.bottleneck = nn.Linear(width + embedding, BOTTLENECK).to(head.weight)
        self.classifier = nn.Linear(BOTTLENECK, classes).to(head.weight)

    def embed(self, images: Images) -> Embeddings:
        """What each image says of its domain."""
        return cast(Tensor, self.embedder(images)).to(self.bottleneck.weight.dtype)

    def features(self, images: Images) -> Features:
        return cast(Tensor, self.featurizer(images))

    def forward(self, images: Images, domains: Embeddings) -> Logits:
        """Logits of each image as one of the domain with that embedding."""
        known = torch.cat([self.features(images), domains], 1)
        return cast(Tensor, self.classifier(self.bottleneck(known).relu()))


class Online:
    """The network on a stream: the embedding is the mean over the images seen so far, the first `limit` of them."""

    def __init__(self, network: DaErm, limit: int | None) -> None:
        self.network, self.limit = network, limit
        self.embedding: Embedding | None = None
        self.count = 0  # images in the embedding

    @torch.no_grad()
    def see(self, images: Images) -> None:
        """Counts the images in, as far as there is room."""
        counted = images if self.limit is None else images[: self.limit - self.count]
        if not len(counted):
            return
        seen = self.network.embed(counted)
        self.count += len(counted)
        before = torch.zeros_like(seen[0]) if self.embedding is None else self.embedding
        self.embedding = before + (seen - before).sum(0) / self.count

    @torch.no_grad()
    def answer(self, images: Images) -> Logits:
        """With the embedding of what was seen; before anything was, with that of these images."""
        embedding = self.embedding
        if embedding is None:
            embedding = self.network.embed(images[: self.limit]).mean(0)
        return cast(Tensor, self.network(images, embedding.expand(len(images), -1)))


def _headed(backbone: nn.Module, classifier: str, width: int) -> nn.Module:
    """A copy of the backbone that ends in so many non-negative numbers, where it ended in logits."""
    copied = copy.deepcopy(backbone)
    parent, _, last = classifier.rpartition(".")
    old = cast(nn.Linear, copied.get_submodule(classifier))
    head = nn.Sequential(nn.ReLU(), nn.Linear(old.in_features, width), nn.ReLU())
    setattr(copied.get_submodule(parent), last, head.to(old.weight))
    return copied


def build(backbone: nn.Module, classes: int) -> DaErm:
    with own_draws("da_erm"):
        return DaErm(backbone, classes)
