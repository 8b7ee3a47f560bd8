"""The BatchNorm layers of a backbone: which they are, and what a private copy can be made to do in their place."""

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from generalizeformer.core.normalisers import has_source_statistics, is_norm
from generalizeformer.errors import SlotError


def batch_norms(backbone: nn.Module) -> dict[str, nn.Module]:
    """Name → layer that normalises with source statistics, frozen variants and layers without affine included."""
    return {
        name: layer
        for name, layer in backbone.named_modules()
        if has_source_statistics(layer) and not isinstance(layer, _InstanceNorm)
    }


def affine_layers(copied: nn.Module) -> list[nn.Module]:
    """The BatchNorm layers that have γ or β to learn; where none has, all norm layers."""
    found = batch_norms(copied).values()
    learning = [layer for layer in found if list(layer.parameters(recurse=False))]
    return learning or [layer for layer in copied.modules() if is_norm(layer)]


def use_batch_statistics(copied: nn.Module, method: str) -> None:
    """BATCH mode: the current batch's mean and biased variance, in eval mode too. Only for a private copy."""
    for name, layer in batch_norms(copied).items():
        if not isinstance(layer, _BatchNorm):
            raise SlotError(
                f"{method}: {name} is a {type(layer).__name__}, which cannot use the statistics of a batch; "
                "replace it with nn.BatchNorm2d, or try alpha_bn, t3a or generalizeformer"
            )
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = None


def replace_batch_norms(
    copied: nn.Module, make: Callable[[str, nn.Module], nn.Module]
) -> list[nn.Module]:
    """What `make` gave for each BatchNorm layer (name and layer), now in its place. Only for a private copy."""
    made = {id(layer): make(name, layer).eval() for name, layer in batch_norms(copied).items()}
    for parent in list(copied.modules()):
        for name, child in parent._modules.items():  # a layer used in two places stays one layer
            parent._modules[name] = made.get(id(child), child)
    return list(made.values())
