"""The smallest training there is: three domains of 8-pixel images, a network of two layers, a φ of one."""

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from generalizeformer.core.backbones import DigitNet
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import channels
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import Config
from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import DomainDataset
from generalizeformer.training import erm, meta
from generalizeformer.training._recipe import Recipe

CLASSES = 3
PREPROCESSING = Preprocessing(size=8)
CARD = Card(classes=tuple("012"), preprocessing=PREPROCESSING, dataset="synthetic")
MODEL = Config(generator=channels.Config(layers=1, width=8, heads=2))


def sources(domains: int = 3, per_class: int = 8) -> DomainDataset:
    config = synthetic.Config(domains=domains, classes=CLASSES, per_class=per_class, size=8)
    return synthetic.build(config)


def network(classes: int = CLASSES) -> nn.Module:
    torch.manual_seed(7)
    return DigitNet(classes, (4, 6), channels=3)


def grouped_network() -> nn.Module:
    """A network whose norm layers keep no statistics of their own."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, CLASSES)
    )


class Windows(nn.Module):
    """Normalises quarters of the map, so that it has four rows for every image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        quarters = x.unflatten(-1, (2, -1)).unflatten(-3, (2, -1)).permute(0, 2, 4, 3, 5, 1)
        rows = self.norm(quarters.flatten(0, 2).flatten(1, 2))
        return rows.unflatten(0, (len(x), -1)).mean((1, 2))


def windowed_network() -> nn.Module:
    """A network with one norm layer over the map, and one over windows of it."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), Windows(4), nn.Linear(4, CLASSES)
    )


def wrapped(backbone: nn.Module) -> GeneralizeFormer:
    torch.manual_seed(8)
    return GeneralizeFormer(backbone, MODEL, CARD)


def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def recipe(**settings: Any) -> Recipe:
    """Six steps a stage, with validation every third."""
    defaults: dict[str, Any] = {
        "model": MODEL,
        "erm": erm.Config(steps=6, per_domain=6, learning_rate=1e-2, every=3),
        "meta": meta.Config(steps=6, images=12, sizes=(1, 4), every=3, validation_sizes=(1, 4)),
    }
    return Recipe(**(defaults | settings))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
