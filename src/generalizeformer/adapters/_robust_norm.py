"""BatchNorm with statistics that follow the target slowly, in place of a layer that has the source's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalizeformer.adapters._batch_norm import batch_norms
from generalizeformer.core.normalisers import finish, is_understood, rescaled
from generalizeformer.errors import SlotError


class RobustNorm(nn.Module):
    """The layer with its own statistics, which move part of the way to those of each batch that they follow.

    While following, it normalises with what the statistics have just become, and gradients reach the input
    through the batch's part of them; otherwise it is the layer in eval mode.
    """

    def __init__(self, layer: nn.Module, share: float) -> None:
        super().__init__()
        self.layer: Any = layer
        self.share, self.following = share, False

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        if not self.following:
            mean, variance = layer.running_mean, layer.running_var
            y = F.batch_norm(x, mean, variance, layer.weight, layer.bias, eps=layer.eps)
            return finish(layer, y)
        mean, variance = self._moved(x)
        scale = (variance + layer.eps).rsqrt()
        scale = scale if layer.weight is None else scale * layer.weight
        bias = -mean * scale if layer.bias is None else layer.bias - mean * scale
        return rescaled(layer, x, scale, bias)

    def _moved(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance after this batch, which are kept."""
        layer = self.layer
        variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        mean = torch.lerp(layer.running_mean, mean.to(layer.running_mean), self.share)
        variance = torch.lerp(layer.running_var, variance.to(layer.running_var), self.share)
        layer.running_mean, layer.running_var = mean.detach(), variance.detach()
        return mean, variance


def make_robust(copied: nn.Module, share: float, method: str) -> None:
    """Puts a RobustNorm around every BatchNorm layer, wherever it is used. Only for a private copy."""
    replaced: dict[nn.Module, RobustNorm] = {}
    for name, layer in batch_norms(copied).items():
        if layer.weight is not None and not is_understood(layer):
            raise SlotError(
                f"{method}: {name} is a {type(layer).__name__}, which does not compute what BatchNorm computes; "
                "try t3a"
            )
        replaced[layer] = RobustNorm(layer, share)
    for name, layer in list(copied.named_modules(remove_duplicate=False)):
        if layer in replaced:
            copied.set_submodule(name, replaced[layer])


def robust_norms(network: nn.Module) -> list[RobustNorm]:
    return [layer for layer in network.modules() if isinstance(layer, RobustNorm)]


@contextmanager
def following(*networks: nn.Module) -> Iterator[None]:
    """Inside, what the networks are shown moves their statistics."""
    layers = [layer for network in networks for layer in robust_norms(network)]
    for layer in layers:
        layer.following = True
    try:
        yield
    finally:
        for layer in layers:
            layer.following = False
