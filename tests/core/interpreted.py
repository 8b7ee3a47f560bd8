"""Kernels over feature maps answer like PyTorch's operations. Run by test_maps.py in a process of its own.

There, because Triton's interpreter, which runs them where there is no GPU, has to be chosen before Triton is imported.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer import kernels as module
from generalizeformer.benchmark.runner import build_adapter
from generalizeformer.core import maps
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import channels
from generalizeformer.core.groups import grouping
from generalizeformer.core.guessing import settle_by_looks
from generalizeformer.core.maps import Act
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import Config
from generalizeformer.core.settling import settle
from generalizeformer.core.variation import Guess

SHAPES = [(3, 5, 4, 6), (2, 70, 3, 3), (2, 16, 24, 25), (4, 3, 1, 1)]
ACTS = {Act.NONE: lambda y: y, Act.RELU: torch.relu, Act.RELU6: F.relu6}
CLOSE = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (2e-2, 3e-2)}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernels; `core.maps` takes them for maps on a CPU."""

    def serves(x: Tensor) -> bool:
        return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)

    monkeypatch.setattr(maps, "serves", serves)
    return module


def drawn(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """A map, a gradient of it, and four matrices, not all of which lie row after row."""
    torch.manual_seed(0)
    x, gradient = (
        torch.randn(shape).to(dtype).contiguous(memory_format=torch.channels_last) for _ in "xg"
    )
    return 3 * x + 1, gradient, *torch.randn(shape[0], 4, shape[1]).unbind(1)


@pytest.mark.parametrize("act", Act)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(
    kernels: ModuleType, shape: tuple[int, ...], dtype: torch.dtype, act: Act
) -> None:
    x, gradient, slope, start, flat, tilt = drawn(shape, dtype)
    rtol, atol = CLOSE[dtype]
    leaves = [value.float().requires_grad_() for value in (x, slope, start)]
    plain = ACTS[act](leaves[0] * wide(leaves[1]) + wide(leaves[2]))
    of_x, *of_numbers = torch.autograd.grad(plain, leaves, gradient.float())
    got = kernels.affine(x, slope, start, act)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), plain.detach(), rtol=rtol, atol=atol)
    applied = (gradient, x, slope, start, act)
    for ours, exact in zip(kernels.sums(*applied), of_numbers, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-3)
    ours = kernels.way_back(*applied)
    torch.testing.assert_close(ours.float(), of_x, rtol=rtol, atol=atol)
    of_x += wide(flat) + wide(tilt) * x.float()
    ours = kernels.way_back(*applied, (flat, tilt))
    torch.testing.assert_close(ours.float(), of_x, rtol=rtol, atol=atol)
    assert ours.is_contiguous(memory_format=torch.channels_last)


def wide(numbers: Tensor) -> Tensor:
    return numbers[:, :, None, None]


def test_nan_stays_where_it_is(kernels: ModuleType) -> None:
    x, gradient, slope, start, *_ = drawn(SHAPES[0])
    x[1, 2, 0, 0] = float("nan")
    for answer in (
        kernels.affine(x, slope, start, Act.RELU6),
        kernels.way_back(gradient, x, slope, start, Act.NONE, (slope, start)),
    ):
        where = answer.isnan().nonzero().tolist()
        assert where == [[1, 2, 0, 0]]


@pytest.mark.parametrize("act", Act)
@pytest.mark.parametrize("by_looks", [False, True])
def test_layers_that_settle_answer_alike(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, by_looks: bool, act: Act
) -> None:
    x, gradient, *_ = drawn((6, 3, 4, 5))
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(3, *n, 3, generator=generator) / 3 for n in ((), (), (2,))]
    source = (torch.randn(3, generator=generator), torch.rand(3, generator=generator) + 0.5)
    groups = grouping(torch.tensor([1, 0, 1, 2, 1, 0]), 6, x)
    guess = Guess(torch.randn(6, 2) / 3, torch.randn(6, 2) / 3, torch.rand(2), 1.0, 2.0)

    def compute(act: Act) -> tuple[Tensor, ...]:
        leaves = [value.clone().requires_grad_() for value in (x, *given)]
        more = (guess,) if by_looks else ()
        settled = (settle_by_looks if by_looks else settle)(*leaves, source, groups, *more, act)
        output = settled.output if maps.serves(x) else ACTS[asked](settled.output)
        total = (output * gradient).sum() + settled.weight.sum() + settled.bias.square().sum()
        return output, *torch.autograd.grad(total, leaves)

    asked = act
    ours = compute(act)
    monkeypatch.setattr(maps, "serves", lambda x: False)
    for one, other in zip(ours, compute(Act.NONE), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class Net(nn.Module):
    """Norm layers that carry their activation, as timm's do, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3, groups=2)
        self.norms = nn.ModuleList([WithAct(8), nn.BatchNorm2d(6)])
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.norms[0](self.first(x))
        return self.head(self.norms[1](self.second(x)).relu().mean((2, 3)))


class WithAct(nn.BatchNorm2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU6()

    def forward(self, x: Tensor) -> Any:
        return self.act(self.drop(super().forward(x)))


@pytest.mark.parametrize("variation", [0, 4])
def test_models_answer_and_learn_alike(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, variation: int
) -> None:
    torch.manual_seed(0)
    net = Net().to(memory_format=torch.channels_last).eval()
    config = Config(generator=channels.Config(variation=variation, noise=0.0), mirrored="all")
    images = torch.randn(12, 3, 9, 9).to(memory_format=torch.channels_last)
    model = GeneralizeFormer(net, config)
    model.generator.begin(0.3, 0.2, 0.5)  # type: ignore[operator]
    model.calibrate(images)
    model.learn_looks(images, torch.arange(12) // 4)

    def compute() -> list[Tensor]:
        logits = model(images, torch.arange(12) // 5)
        return [
            logits,
            *torch.autograd.grad(logits.exp().sum(), list(model.generator.parameters())),
        ]

    check_alike(kernels, monkeypatch, compute, least=3)


def check_alike(
    kernels: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    compute: Callable[[], list[Tensor]],
    least: int,
) -> None:
    """With the kernels and without; the former really by them, for so many maps at least."""
    served: list[tuple[int, ...]] = []
    affine = kernels.affine
    monkeypatch.setattr(
        kernels, "affine", lambda x, *more: served.append(x.shape) or affine(x, *more)
    )
    ours = compute()
    assert len(served) >= least
    monkeypatch.setattr(maps, "serves", lambda x: False)
    for one, other in zip(ours, compute(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("alpha_bn", {}),
        ("domainadaptor", {}),
        ("memo", {"views": 3}),
        ("rotta", {"update_every": 3, "memory_size": 6}),
    ],
)
def test_compared_methods_answer_alike(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    net = Net().to(memory_format=torch.channels_last).eval()
    card = Card(preprocessing=Preprocessing(size=9, mean=(0.5,) * 3, std=(0.5,) * 3))
    source = GeneralizeFormer(net, card=card)
    images = torch.rand(6, 3, 9, 9).to(memory_format=torch.channels_last)

    def compute() -> list[Tensor]:
        adapter, _ = build_adapter(method, source, **settings)
        return [adapter.step(images), adapter.step(images.flip(0))]

    check_alike(kernels, monkeypatch, compute, least=2)
