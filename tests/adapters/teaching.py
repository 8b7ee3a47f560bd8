"""What the tests of methods with a teacher and a student share: a network, comparisons, chance."""

import torch
from torch import Generator, Tensor, nn

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection

NEVER, ALWAYS = 0.0, 1.0  # confidences below which CoTTA averages views


def assert_close(got: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def net(*last: nn.Module, norm: nn.Module | None = None, channels: int = 3) -> GeneralizeFormer:
    """conv, a norm layer, pooling, whatever comes last, a classifier."""
    torch.manual_seed(4)
    norm = nn.BatchNorm2d(8) if norm is None else norm
    layers = [nn.Conv2d(channels, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    backbone = nn.Sequential(*layers, *last, nn.Linear(8, 5)).double()
    return GeneralizeFormer(backbone, Config(selection=Selection(kinds=("classifier",))))


def parameters(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def equal_parameters(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)
