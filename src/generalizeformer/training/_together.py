"""Several processes as one: gradients and buffers are averaged, so every rank keeps the same weights."""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

Schedule = Literal["cosine", "constant"]


@runtime_checkable
class Pace(Protocol):
    """What a training's config says of its learning rate."""

    @property
    def steps(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def schedule(self) -> Schedule: ...


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
    average(fabric, [p.grad for p in moved])
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(moved, clip)
    optimizer.step()


def share_buffers(fabric: Fabric, module: nn.Module) -> None:
    """Averages running statistics over the ranks, each of which has seen other images."""
    average(fabric, [value for value in module.buffers() if value.is_floating_point()])


@torch.no_grad()
def average(fabric: Fabric, tensors: Sequence[Tensor]) -> None:
    """Replaces every tensor by its mean over the ranks, in place and in one message."""
    if fabric.world_size == 1 or not tensors:
        return
    joined = torch.cat([value.flatten() for value in tensors])
    mean = fabric.all_reduce(joined, reduce_op="mean")
    assert isinstance(mean, Tensor)
    parts = torch.split(mean, [value.numel() for value in tensors])
    for value, part in zip(tensors, parts, strict=True):
        value.copy_(part.view_as(value))


def schedule(optimizer: torch.optim.Optimizer, pace: Pace, step: int) -> None:
    """Learning rate by step number alone, so there is nothing to save and nothing to resume.

    cosine: a short rise, then a cosine to zero. constant: always the same.
    """
    rise = max(1, pace.steps // 10)
    if pace.schedule == "constant":
        factor = 1.0
    elif step < rise:
        factor = (step + 1) / rise
    else:
        turn = torch.tensor((step - rise) / max(1, pace.steps - rise) * torch.pi)
        factor = float(0.5 * (1 + turn.cos()))
    for group in optimizer.param_groups:
        group["lr"] = pace.learning_rate * factor
