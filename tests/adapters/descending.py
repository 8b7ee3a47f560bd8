"""What the tests of methods that follow a loss downhill share: which they are, a network, comparisons."""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from generalizeformer.adapters import pl, pl_c, shot, shot_im, tent_bn, tent_c
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection

HARNESS = [tent_bn, tent_c, pl, pl_c, shot, shot_im]


def name_of(method: object) -> str | None:
    return method.__name__.rpartition(".")[2] if isinstance(method, ModuleType) else None


def every(methods: list[ModuleType]) -> Any:
    return pytest.mark.parametrize("method", methods, ids=name_of)


def network(*last: nn.Module, classes: int = 5) -> GeneralizeFormer:
    """conv, pooling, whatever comes last, a classifier."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *last]
    backbone = nn.Sequential(*layers, nn.Linear(8, classes)).double()
    return GeneralizeFormer(backbone, Config(selection=Selection(kinds=("classifier",))))


def eager(method: Any, **settings: Any) -> Any:
    """A Config under which the network of these tests, which is sure of nothing, has pseudo labels to learn from."""
    threshold = {"threshold": 0.2} if method in (pl, pl_c, shot) else {}
    return method.Config(**threshold, **settings)


def moved(adapter: Any, backbone: nn.Module) -> set[str]:
    """The names of the backbone's parameters that are no longer the source's."""
    now = dict(adapter.backbone.named_parameters())
    return {n for n, value in backbone.named_parameters() if not torch.equal(value, now[n])}


def assert_near(got: Tensor, expected: Tensor, atol: float) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)
