"""What the tests of entropy filters share: a network, an update by hand, comparisons."""

import copy
import math
from typing import Any

import torch
from recordings import NORMS, assert_agree
from torch import Tensor, nn

from generalizeformer.adapters._entropy_descent import EntropyDescent
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection

PARTS = [f"{norm}.{part}" for norm in NORMS for part in ("weight", "bias")]
VISIBLE = 0.05  # the learning rate of the records


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def assert_parameters(adapter: EntropyDescent, trace: dict[str, Tensor], key: str, at: int) -> None:
    for part in PARTS:
        value = adapter.backbone.get_parameter(part)
        assert_agree(value, trace[f"{key}/params_per_batch/{part}"][at])


def assert_same_parameters(adapter: EntropyDescent, network: nn.Module) -> None:
    for name, value in adapter.backbone.named_parameters():
        assert_close(value.detach(), network.get_parameter(name).detach())


def net(*layers: nn.Module) -> GeneralizeFormer:
    """conv, ReLU, pooling, these layers, a classifier."""
    torch.manual_seed(4)
    first = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    backbone = nn.Sequential(*first, *layers, nn.Linear(8, 5)).double()
    return GeneralizeFormer(backbone, Config(selection=Selection(kinds=("classifier",))))


def apart(one: nn.Module, other: nn.Module) -> float:
    """The distance between two networks' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return math.sqrt(sum((a - b).square().sum().item() for a, b in pairs))


def distance(adapter: EntropyDescent, backbone: nn.Module) -> float:
    """How far the copy is from the source."""
    return apart(adapter.backbone, backbone)


def one_sgd_step(backbone: nn.Module, images: Tensor, loss: Any, rate: float) -> nn.Module:
    """An independent update of the affine parts under batch statistics."""
    network = copy.deepcopy(backbone).train()
    moving = [p for m in network.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    gradients = torch.autograd.grad(loss(network, network(images)), moving)
    with torch.no_grad():
        for value, gradient in zip(moving, gradients, strict=True):
            value -= rate * gradient
    return network
