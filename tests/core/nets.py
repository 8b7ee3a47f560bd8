"""Small backbones with a past, images, and ways to tell whether something changed."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import timm
import torch
import torchvision
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from generalizeformer.core.backbones import DigitNet
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import channels, rows
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection

CHANNELS = channels.Config(
    layers=1, width=16, heads=2, settle=False, gather=False, detail=True, variation=0
)
ROWS = rows.Config(layers=1, width=16, heads=2, feedforward=16)
SETTLING = channels.Config(layers=1, width=16, heads=2, variation=0)
VARYING = replace(SETTLING, variation=4)
GENERATORS = {"channels": CHANNELS, "settling": SETTLING, "varying": VARYING, "rows": ROWS}
# Every generator without kin and with it. Where looks are guessed too, test_likeness.py has groups that are mixed.
KIN = [(name, kin) for kin in (None, 0.3) for name in GENERATORS]
EVERYTHING = Selection(kinds=("norm", "classifier", "linear", "conv"))
CLASSES = 5


def images(
    count: int,
    size: int = 16,
    channels: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    generator = Generator().manual_seed(seed)
    return torch.randn(count, channels, size, size, generator=generator, dtype=dtype)


class Net(nn.Module):
    """Convolution, a norm layer, a hidden Linear layer, a classifier. Tokens where the norm is over tokens."""

    def __init__(
        self, norm: nn.Module | None = None, tokens: bool = False, classes: int = CLASSES
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2)
        self.norm = norm or nn.BatchNorm2d(8)
        self.hidden = nn.Linear(8, 6)
        self.fc = nn.Linear(6, classes)
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.norm(x.flatten(2).mT).mean(1) if self.tokens else self.norm(x).mean((2, 3))
        return self.fc(self.hidden(x).relu())


@torch.no_grad()
def lived(backbone: nn.Module, size: int = 16, seed: int = 1) -> nn.Module:
    """The backbone in float64 as if it had been trained: statistics of images, γ and β that are not 1 and 0."""
    generator = Generator().manual_seed(seed)
    backbone.double().train()
    for layer in backbone.modules():
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if isinstance(weight, Tensor) and weight.dim() == 1:
            weight.mul_(0.7 + 0.6 * torch.rand(weight.shape, generator=generator).to(weight))
            if isinstance(bias, Tensor):
                bias.add_(0.1 * torch.randn(bias.shape, generator=generator).to(bias))
        fixed = isinstance(getattr(layer, "running_var", None), Tensor)
        if fixed and not isinstance(layer, _NormBase):
            layer.running_mean.add_(0.2 * torch.randn(weight.shape, generator=generator))
            layer.running_var.mul_(0.5 + torch.rand(weight.shape, generator=generator))
    for _ in range(3):
        backbone(1.5 * images(8, size, _channels(backbone), seed))
    return backbone.eval()


def _channels(backbone: nn.Module) -> int:
    return next(m.in_channels for m in backbone.modules() if isinstance(m, nn.Conv2d))


def digits(classes: int = CLASSES, seed: int = 0) -> nn.Module:
    """A narrow DigitNet of its own for tests that change it, in float64."""
    torch.manual_seed(seed)
    return lived(DigitNet(classes, (6, 8, 8, 10), 3))


ARCHITECTURES: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "digits": (16, lambda: DigitNet(CLASSES, (8, 12, 16, 16), 3)),
    "torchvision resnet18": (
        48,
        lambda: torchvision.models.resnet18(weights=None, num_classes=CLASSES),
    ),
    "torchvision resnet50": (
        48,
        lambda: torchvision.models.resnet50(weights=None, num_classes=CLASSES),
    ),
    "timm resnet18": (48, lambda: timm.create_model("resnet18", num_classes=CLASSES)),
    "tf_efficientnet_lite0": (
        48,
        lambda: timm.create_model("tf_efficientnet_lite0", num_classes=CLASSES),
    ),
    "regnety_002": (48, lambda: timm.create_model("regnety_002", num_classes=CLASSES)),
    "convnext_atto": (64, lambda: timm.create_model("convnext_atto", num_classes=CLASSES)),
    "vit_tiny": (
        32,
        lambda: timm.create_model(
            "vit_tiny_patch16_224", img_size=32, depth=4, num_classes=CLASSES
        ),
    ),
}


@cache
def architecture(name: str) -> nn.Module:
    """A backbone of the list, shared by tests: nothing may change it (and tests say that nothing does)."""
    size, build = ARCHITECTURES[name]
    torch.manual_seed(0)
    return lived(build(), size)


def model_of(backbone: nn.Module, generator: Any = CHANNELS, **config: Any) -> GeneralizeFormer:
    """An untrained model in eval mode. One answer, as generated, and groups as wholes, unless asked for more."""
    torch.manual_seed(3)
    plain: dict[str, Any] = {"strengths": (1.0,), "singly": False, "kin": None}
    config = {"generator": generator} | plain | config
    return GeneralizeFormer(backbone, Config(**config)).eval()


@torch.no_grad()
def perturb(model: GeneralizeFormer, scale: float = 0.1, seed: int = 2) -> GeneralizeFormer:
    """The model with noise on every weight of φ, as if it had been trained, and with looks that vary somehow."""
    noise = Generator().manual_seed(seed)
    for value in model.generator.parameters():
        value.add_(scale * torch.randn(value.shape, generator=noise, dtype=value.dtype))
    for value in () if model.variation is None else model.variation.buffers():
        value.add_(0.1 * torch.rand(value.shape, generator=noise, dtype=value.dtype))
    return model


def perturbed(backbone: nn.Module, generator: Any = CHANNELS, **config: Any) -> GeneralizeFormer:
    return perturb(model_of(backbone, generator, **config))


def by_loop(model: GeneralizeFormer, x: Tensor, groups: Tensor) -> Tensor:
    """The answers of one call per group."""
    with torch.no_grad():
        answers = x.new_zeros(len(x), model.classes)
        for group in groups.unique():
            answers[groups == group] = model(x[groups == group])
    return answers


def state(module: nn.Module) -> dict[str, Any]:
    """All of a module that could change: tensors, modes, flags, gradients."""
    tensors = {name: value.clone() for name, value in module.state_dict().items()}
    modes = {name: child.training for name, child in module.named_modules()}
    flags = {name: (p.requires_grad, p.grad) for name, p in module.named_parameters()}
    kept = {name: id(value) for name, value in module.named_parameters()}
    return {"tensors": tensors, "modes": modes, "flags": flags, "identity": kept}


def assert_unchanged(module: nn.Module, before: dict[str, Any]) -> None:
    now = state(module)
    assert now["modes"] == before["modes"]
    assert now["flags"] == before["flags"]
    assert now["identity"] == before["identity"]
    assert now["tensors"].keys() == before["tensors"].keys()
    for name, value in before["tensors"].items():
        assert now["tensors"][name].dtype == value.dtype, name
        assert torch.equal(now["tensors"][name], value), name


def assert_as_lent(backbone: nn.Module, **config: Any) -> None:
    """An untrained model answers like the lent one in eval mode, and writes nothing into it, also in train mode."""
    x = images(6)
    backbone.train()
    before = state(backbone)
    model = model_of(backbone, **config)
    answers = model(x, torch.tensor([0, 1, 0, 1, 0, 1]))
    model.calibrate(x)
    assert backbone.training
    assert_unchanged(backbone, before)
    torch.testing.assert_close(answers, copy.deepcopy(backbone).eval()(x), rtol=0, atol=1e-9)


def single(backbone: nn.Module) -> nn.Module:
    """A float32 copy."""
    return copy.deepcopy(backbone).float()
