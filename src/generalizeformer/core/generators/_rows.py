"""Rows of a classifier, a Linear layer or a convolution: how they are described, and what a move does to them."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.generators._norms import Bounds
from generalizeformer.core.generators._units import (
    CLIP,
    GRADIENT_FLOOR,
    Input,
    onward,
    relative,
    rms,
)
from generalizeformer.core.observation import Observation
from generalizeformer.core.shapes import Params
from generalizeformer.core.slots import Kind, Slot, towards

DESCRIPTORS = 9
MOVES = 4  # along the row itself, along its gradient, towards its class's features, of the bias
GATHER = slice(2, 3)  # of the moves: that towards its class's features
RECALL = slice(4, 5)  # one more of the classifier: from its rows to the source's prototypes


def describe(
    slots: list[Slot], source: Params, seen: Observation, inputs: tuple[Input, ...]
) -> Float[Tensor, "groups rows descriptors"]:
    """Angles and sizes of every row, so that the rows' width does not matter; slot after slot."""
    return torch.cat([_describe(slot, source, seen, inputs) for slot in slots], 1)


def apply(
    slots: list[Slot],
    source: Params,
    seen: Observation,
    moves: Float[Tensor, "groups rows moves"],
    bounds: Bounds,
) -> Params:
    """The rows after the move. All moves zero gives the source's, bit for bit."""
    target: Params = {}
    parts = torch.split(moves, [slot.size[0] for slot in slots], 1)
    for slot, part in zip(slots, parts, strict=True):
        target |= _apply(slot, source, seen, part, bounds)
    return target


def _describe(slot: Slot, source: Params, seen: Observation, inputs: tuple[Input, ...]) -> Tensor:
    groups, count = len(seen.grouping.sizes), slot.size[0]
    rows = slot.rows(source)
    gradients, size = relative(slot.rows(seen.gradients), GRADIENT_FLOOR)
    prototypes, share = _prototypes(slot, seen)
    unit = rms(rows) + 1e-12
    blank = rows.new_zeros(groups, count)
    told = {
        "features": [_cosine(prototypes, rows), prototypes.norm(dim=-1), share],
        "gradients": [
            _cosine(gradients, rows),
            gradients.square().mean(-1).sqrt(),
            size.squeeze(-1).expand_as(blank),
        ],
        "parameters": [
            (rows.square().mean(-1).sqrt() / unit.squeeze(-1)).expand_as(blank),
            (_bias(slot, rows) / unit.squeeze()).clamp(-CLIP, CLIP).expand_as(blank),
        ],
    }
    columns = [c if kind in inputs else blank for kind, many in told.items() for c in many]
    return torch.stack([*columns, blank + 1], -1)


def _apply(slot: Slot, source: Params, seen: Observation, moves: Tensor, bounds: Bounds) -> Params:
    rows = slot.rows(source)
    # (groups, rows, 1) each
    along, down, to_class, bias = (bounds.change * moves[..., :MOVES]).unsqueeze(-1).unbind(2)
    gradients, _ = relative(slot.rows(seen.gradients), GRADIENT_FLOOR)
    length = rows.norm(dim=-1, keepdim=True)
    gradients = gradients / (gradients.norm(dim=-1, keepdim=True) + 1e-3)
    change = rows * along
    gathers = bounds.gather and slot.kind == "classifier" and "features" in bounds.inputs
    if "features" in bounds.inputs and not gathers:
        change = change + length * _prototypes(slot, seen)[0] * to_class
    if "gradients" in bounds.inputs:
        change = change - length * gradients * down
    if len(slot.shapes) == 2:  # the last column is the bias: it has a move of its own
        change = torch.cat([change[..., :-1], rms(rows) * bias], -1)
    if recalls(slot.kind, bounds) and seen.prototypes is not None:
        share = bounds.recall * onward(moves[..., RECALL], bounds.away)
        change = change + share * (seen.prototypes.rows(rows) - rows)
    target = slot.parameters(rows + change)
    if gathers:
        target[towards(slot.layer)] = bounds.pull * onward(moves[..., 2], bounds.away)
    return target


def _prototypes(slot: Slot, seen: Observation) -> tuple[Tensor, Tensor]:
    """Per group and class: the direction from the batch's mean feature to those predicted as that class.

    Soft assignments; shorter than one where the difference is small beside the features, and zero for a
    single image. The second answer is the class's share of the batch. Both zero but for the classifier.
    """
    groups, (count, width) = len(seen.grouping.sizes), slot.size
    if slot.kind != "classifier":
        zero = seen.features.new_zeros(groups, count, width)
        return zero, zero[..., 0]
    answers = seen.logits.softmax(-1)
    share = seen.grouping.mean(answers)
    shown = seen.grouping.mean(answers.unsqueeze(-1) * seen.features.unsqueeze(1))
    middle = seen.grouping.mean(seen.features).unsqueeze(1)
    mean = (shown - share.unsqueeze(-1) * middle) / (share.unsqueeze(-1) + 1e-3)
    size = seen.grouping.mean(seen.features.square()).sum(-1).sqrt()[:, None, None]
    towards = mean / (mean.norm(dim=-1, keepdim=True) + 0.1 * size + 1e-6)
    return F.pad(towards, (0, width - towards.shape[-1])), share


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a, b, dim=-1, eps=1e-6)


def _bias(slot: Slot, rows: Tensor) -> Tensor:
    """Each row's bias; zero where the layer has none and the last column is a weight like the others."""
    return rows[:, -1] if len(slot.shapes) == 2 else torch.zeros_like(rows[:, -1])


def recalls(kind: Kind, bounds: Bounds) -> bool:
    """Whether rows of a layer of this kind move to the source's prototypes as well."""
    return bounds.recall > 0 and kind == "classifier" and "features" in bounds.inputs


def elements(slot: Slot) -> int:
    """How many rows the layer has."""
    return slot.size[0]
