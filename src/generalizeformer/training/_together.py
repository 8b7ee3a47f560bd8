"""Several processes as one: gradients are averaged, so every rank keeps the same weights."""

from collections.abc import Iterable

import torch
from lightning_fabric import Fabric
from torch import Tensor


def descend(
    fabric: Fabric, optimizer: torch.optim.Optimizer, loss: Tensor, clip: float | None = None
) -> None:
    """Zero, backward, average over ranks, clip, step. The one place where weights move.

    Averaging here instead of wrapping modules keeps them plain: φ is called with observations, which a
    wrapper would try to convert, and several backbones share one φ.
    """
    optimizer.zero_grad(set_to_none=True)
    fabric.backward(loss)
    moved = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    average(fabric, moved)
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(moved, clip)
    optimizer.step()


def average(fabric: Fabric, parameters: Iterable[Tensor]) -> None:
    """Replaces every gradient by its mean over the ranks."""
    if fabric.world_size == 1:
        return
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad = fabric.all_reduce(parameter.grad, reduce_op="mean")  # type: ignore[assignment]


def schedule(optimizer: torch.optim.Optimizer, peak: float, step: int, steps: int) -> None:
    """Learning rate by step number alone: a short rise, then a cosine to zero. Nothing to save, nothing to resume."""
    rise = max(1, steps // 10)
    if step < rise:
        factor = (step + 1) / rise
    else:
        turn = torch.tensor((step - rise) / max(1, steps - rise) * torch.pi)
        factor = float(0.5 * (1 + turn.cos()))
    for group in optimizer.param_groups:
        group["lr"] = peak * factor
