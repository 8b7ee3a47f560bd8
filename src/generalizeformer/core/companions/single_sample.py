"""The network that writes a classifier for every image, from the sources' class centres and a descriptor of the image.

The descriptor is the channel means of the feature maps between the backbone's stages, and its last features. With the
centre of a class over the sources, it makes a normal distribution over that class's classifier row for this very
image; the row's mean answers at test time. In training the same distribution, made from the centres of the image's
own domain, is what it is drawn to.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.core.classifiers import find_classifier
from generalizeformer.core.companions._gaussian import Gaussian
from generalizeformer.core.companions._own_draws import own_draws
from generalizeformer.core.groups import Grouping
from generalizeformer.core.normalisers import is_norm
from generalizeformer.core.shapes import Features, Images, Logits
from generalizeformer.core.slots import stage_of
from generalizeformer.errors import SlotError

Centres = Float[Tensor, "classes feature"]
Descriptors = Float[Tensor, "images feature"]
Rows = Float[Tensor, "*lead images classes feature"]


class Writer(nn.Module):
    """Feature vectors in, normal distributions of the same width out; the second output is before its softplus."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.mean, self.spread = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.shared(x)
        return self.mean(shared), self.spread(shared)


class SingleSample(nn.Module):
    """The backbone's copy with networks that write its classifier. `centres` is what test time knows of the sources."""

    centres: Tensor

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.classifier = find_classifier(backbone)
        head = cast(nn.Linear, backbone.get_submodule(self.classifier))
        if head.out_features != classes:
            raise SlotError(
                f"single_sample: {self.classifier} gives {head.out_features} numbers for {classes} classes, so it is "
                "not the classifier; name that layer fc, classifier or head"
            )
        self.backbone, self.between = copy.deepcopy(backbone), between_stages(backbone)
        seen, width = head.in_features + sum(self.between.values()), head.in_features
        self.describe = _perceptron(seen, width)
        self.join = _perceptron(2 * width, width)
        self.sources, self.rows = Writer(width), Writer(width)
        self.register_buffer("centres", torch.zeros(classes, width))

    def forward(self, images: Images, together: Grouping | None = None) -> Logits:
        """Every image under the mean of the rows written for it. `together`: groups share one descriptor."""
        features, descriptors = self.observe(images)
        if together is not None:
            descriptors = together.spread(together.mean(descriptors))
        known = self.sources(self.centres)[0]  # no draws at test time
        rows = self.written(descriptors, known.unsqueeze(0)).mean
        return answers(features, rows).to(images.dtype)

    def observe(self, images: Images) -> tuple[Features, Descriptors]:
        """The features that a classifier would get, and the descriptor of every image."""
        with self._watching() as seen:
            self.backbone(images)
        if missing := [name for name in (*self.between, self.classifier) if name not in seen]:
            raise SlotError(
                f"single_sample: the model's forward never calls {missing[0]}, so it cannot be described; try t3a"
            )
        features = seen[self.classifier]
        parts = [seen[name].flatten(2).mean(2) for name in self.between]
        return features, self.describe(torch.cat([*parts, features], 1))

    def known(
        self, centres: Centres, times: int, generator: torch.Generator
    ) -> Float[Tensor, "times classes feature"]:
        """Draws of what the sources say of each class."""
        return _gaussian(*self.sources(centres)).sample(times, generator)

    def written(
        self, descriptors: Descriptors, known: Float[Tensor, "times classes feature"]
    ) -> Gaussian:
        """The distribution of every image's rows, (images, classes, feature), the mean over what is known."""
        shape = (len(descriptors), *known.shape)
        pairs = [descriptors[:, None, None].expand(shape), known.expand(shape)]
        mean, spread = self.rows(self.join(torch.cat(pairs, -1)))
        return _gaussian(mean.mean(1), spread.mean(1))

    def expected(self, centres: Centres) -> Gaussian:
        """The distribution of the rows, (classes, feature), for a domain whose own centres are known."""
        return _gaussian(*self.rows(centres))

    @contextmanager
    def _watching(self) -> Iterator[dict[str, Tensor]]:
        """What the watched layers are given while this is entered, by their names."""
        seen: dict[str, Tensor] = {}

        def watch(name: str) -> torch.utils.hooks.RemovableHandle:
            def keep(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
                seen[name] = given[0]

            return self.backbone.get_submodule(name).register_forward_pre_hook(keep)

        handles = [watch(name) for name in (*self.between, self.classifier)]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


def answers(features: Features, rows: Rows) -> Float[Tensor, "*lead images classes"]:
    """Logits of every image under rows of its own, without bias."""
    return torch.einsum("...ikf,if->...ik", rows, features.to(rows.dtype))


def between_stages(backbone: nn.Module) -> dict[str, int]:
    """Name → channels in, of the first convolution of every stage but the first: it sees what the one before made.

    A stage holds convolutions and norm layers; in a network that has none such, convolutions are enough. In a
    ResNet these are the outputs of layer1, layer2 and layer3.
    """
    convolutions: dict[str, tuple[str, int]] = {}
    normed: set[str] = set()
    for name, layer in backbone.named_modules():
        if isinstance(layer, nn.Conv2d):
            convolutions.setdefault(stage_of(name), (name, layer.in_channels))
        elif is_norm(layer):
            normed.add(stage_of(name))
    whole = [first for stage, first in convolutions.items() if stage in normed]
    return dict((whole or list(convolutions.values()))[1:])


def _perceptron(given: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(given, width), nn.ReLU(), nn.Linear(width, width))


def _gaussian(mean: Tensor, spread: Tensor) -> Gaussian:
    """In single precision at least: the divergence is a sum over very many numbers."""
    dtype = torch.promote_types(mean.dtype, torch.float32)
    mean, spread = mean.to(dtype), spread.to(dtype)
    return Gaussian(mean, F.softplus(spread).square())


def build(backbone: nn.Module, classes: int) -> SingleSample:
    """The untrained network around a copy of the backbone."""
    with own_draws("single_sample"):
        network = SingleSample(backbone, classes)
    return network.to(next(backbone.parameters()))
