"""Finding the layer whose outputs are the logits."""

import copy
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

from generalizeformer.errors import SlotError

# The attribute under which the common families keep their head; a Sequential there ends in the head.
USUAL_NAMES = ("fc", "classifier", "head.fc", "head", "heads.head", "heads")


def find_classifier(backbone: nn.Module, name: str | None = None) -> str:
    """The classifier's name: as given, else timm's word, else a usual name, else the last Linear layer."""
    modules = dict(backbone.named_modules())
    if name is not None:
        return _named(backbone, modules, name)
    if callable(getattr(backbone, "get_classifier", None)):  # timm
        head: object = backbone.get_classifier()  # type: ignore[operator]
        path: str
        for path, module in modules.items():
            if module is head and isinstance(module, nn.Linear):
                return path
    for usual in USUAL_NAMES:
        if found := _last_linear(modules, usual):
            return found
    if found := _last_linear(modules, ""):
        return found
    raise SlotError(
        f"{type(backbone).__name__}: there is no Linear layer that could be the classifier; "
        "GeneralizeFormer reads the features in front of it, so the model must end in one"
    )


def class_count(backbone: nn.Module, classifier: str) -> int:
    """How many classes the classifier tells apart."""
    return cast(nn.Linear, backbone.get_submodule(classifier)).out_features


def check_linear(layer: nn.Linear, name: str) -> None:
    """Raises where a subclass of Linear, a cosine classifier for one, computes something else."""
    if type(layer).forward is nn.Linear.forward:
        return
    layer = copy.deepcopy(layer).eval()  # some count, or change by being looked at
    weight = layer.weight
    x = torch.linspace(-2, 2, 3 * layer.in_features).to(weight).reshape(3, -1)
    with torch.no_grad():
        same = torch.allclose(layer(x), F.linear(x, weight, layer.bias), rtol=1e-3, atol=1e-4)
    if not same:
        raise SlotError(
            f"{name}: {type(layer).__name__} does not compute what Linear computes, so its rows cannot be "
            "generated; leave it out with Selection(kinds=('norm',))"
        )


def _named(backbone: nn.Module, modules: dict[str, nn.Module], name: str) -> str:
    if isinstance(modules.get(name), nn.Linear):
        return name
    linear = [found for found, module in modules.items() if isinstance(module, nn.Linear)]
    raise SlotError(
        f"{type(backbone).__name__}: {name!r} is no Linear layer; its Linear layers are: "
        f"{', '.join(linear[-8:]) or 'none'}"
    )


def _last_linear(modules: dict[str, nn.Module], below: str) -> str | None:
    found = [
        name
        for name, module in modules.items()
        if isinstance(module, nn.Linear) and (not below or f"{name}.".startswith(f"{below}."))
    ]
    return found[-1] if found else None
