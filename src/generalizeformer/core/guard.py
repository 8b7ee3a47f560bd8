"""A guard against bad generations: label-free, per group, between source and generated parameters.

It is a trust region in prediction space. Of a few steps on the line from the generated to the source
parameters it takes the farthest whose answers differ from the source's by at most `limit` nats (mean
KL over the group). So however bad a generation is, the answer stays within `limit` of the source model's.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from generalizeformer.core.grouped import GroupedBackbone
from generalizeformer.core.groups import Grouping
from generalizeformer.core.observation import Observation
from generalizeformer.core.shapes import Logits, Params
from generalizeformer.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Guard:
    limit: float = 0.5  # nats of mean KL(source answer ‖ answer) that a group may move
    steps: int = 4  # how many places between generated and source are tried

    def __post_init__(self) -> None:
        if not self.limit >= 0 or self.steps < 1:
            raise UserError(
                f"guard: got {self}; the limit must be >= 0 and there must be at least one step"
            )


def guarded(
    network: GroupedBackbone, guard: Guard, source: Params, target: Params, seen: Observation
) -> Params:
    """The generated parameters, each group's pulled back towards the source as far as its guard demands."""
    share = torch.zeros_like(seen.grouping.sizes)
    # From all the way down to a fraction of it; what no step satisfies stays at 0, the source.
    for step in range(guard.steps):
        trial = 1 - step / guard.steps
        undecided = share == 0
        if not undecided.any():
            break
        with torch.no_grad():
            moved = network.run(
                seen.images, seen.grouping, between(source, target, torch.full_like(share, trial))
            )
        accepted = distance(seen.logits, moved.logits, seen.grouping) <= guard.limit  # not for nan
        share = torch.where(undecided & accepted, trial, share)
    return between(source, target, share)


def between(source: Params, target: Params, share: Float[Tensor, " groups"]) -> Params:
    """source + share · (target - source) per group; exactly the source at 0, exactly the target at 1."""
    mixed: Params = {}
    for name, generated in target.items():
        part = share.to(generated.dtype).reshape(-1, *[1] * (generated.dim() - 1))
        start = source.get(name, torch.zeros_like(generated))  # the source moves nowhere
        moved = start + part * (generated - start)
        mixed[name] = torch.where(part == 1, generated, torch.where(part == 0, start, moved))
    return mixed


def distance(source: Logits, moved: Logits, grouping: Grouping) -> Float[Tensor, " groups"]:
    """Mean KL(source ‖ moved) of each group's answers."""
    log_p, log_q = source.log_softmax(-1), moved.log_softmax(-1)
    return grouping.mean((log_p.exp() * (log_p - log_q)).sum(-1))
