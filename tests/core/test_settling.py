"""Norm layers that move towards what they see: the formula, its gradients, and what no group may notice of another."""

from typing import Any

import pytest
import torch
from torch import Tensor

from generalizeformer.core.groups import grouping
from generalizeformer.core.settling import settle

IDS = torch.tensor([1, 0, 1, 2, 1, 0])
SHAPES = [(6, 3, 4, 5), (6, 3, 7), (6, 3)]


def given(shape: tuple[int, ...], scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Any:
    """x, γ, β, moves and the source's mean and 1/σ."""
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    x, weight, bias = scale * draw(*shape), 1 + 0.3 * draw(3, 3), draw(3, 3)
    return x, weight, bias, 0.4 * draw(3, 2, 3), (draw(3), draw(3).exp())


def plain(x: Tensor, weight: Tensor, bias: Tensor, moves: Tensor, source: Any) -> Tensor:
    """The same by the book, group by group, for autograd to go back through."""
    mean, scale = source
    output = torch.empty_like(x)
    for group in range(3):
        mine = x[group == IDS]
        over = tuple(axis for axis in range(x.dim()) if axis != 1)
        shape = (1, -1, *[1] * (x.dim() - 2))
        variance, seen = torch.var_mean(mine, over, correction=0)
        shift = ((seen - mean) * scale).clamp(-3, 3)
        spread = (0.5 * (variance * scale.square()).clamp(min=1e-6).log()).clamp(-2, 2)
        gamma = weight[group] * (-moves[group, 1] * spread).exp()
        beta = bias[group] - gamma * moves[group, 0] * shift
        normal = (mine - mean.view(shape)) * scale.view(shape)
        output[group == IDS] = normal * gamma.view(shape) + beta.view(shape)
    return output


@pytest.mark.parametrize("scale", [1.0, 0.01, 30.0])  # beyond the bounds on either side as well
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_and_gradients_are_those_of_the_formula(
    shape: tuple[int, ...], scale: float
) -> None:
    *inputs, source = given(shape, scale)
    answers = []
    for compute in (plain, lambda *of: settle(*of, grouping(IDS, 6, inputs[0])).output):
        leaves = [value.clone().requires_grad_() for value in inputs]
        output = compute(*leaves, source)
        answers.append((output, *torch.autograd.grad(output.sin().sum(), leaves)))
    for ours, exact in zip(answers[1], answers[0], strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-7, atol=1e-9)


def test_gradients_reach_the_inputs_through_the_moved_parameters_too() -> None:
    *inputs, source = given(SHAPES[0])
    leaves = [value.clone().requires_grad_() for value in inputs]
    groups = grouping(IDS, 6, inputs[0])
    assert torch.autograd.gradcheck(lambda *of: tuple(settle(*of, source, groups)), leaves)
    assert torch.autograd.gradcheck(lambda *of: settle(*of, source, groups).weight, leaves)


def test_without_gradients_the_answer_is_the_same() -> None:
    *inputs, source = given(SHAPES[0])
    groups = grouping(IDS, 6, inputs[0])
    with torch.no_grad():
        alone = settle(*inputs, source, groups)
    for one, other in zip(alone, settle(*inputs, source, groups), strict=True):
        assert torch.equal(one, other)


def test_half_precision_maps_have_single_precision_statistics() -> None:
    x, *rest, source = given(SHAPES[0], dtype=torch.float32)
    groups = grouping(IDS, 6, x)
    leaves = [x.bfloat16().requires_grad_(), *(value.requires_grad_() for value in rest)]
    output = settle(*leaves, source, groups).output
    assert output.dtype == torch.bfloat16
    got = torch.autograd.grad(output.float().square().sum(), leaves)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    wide = settle(*exact, tuple(v.double() for v in source), groups).output
    for ours, theirs in zip(got, torch.autograd.grad(wide.square().sum(), exact), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0.05, atol=0.05 * theirs.abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_statistics_keep_their_digits_far_from_zero(dtype: torch.dtype) -> None:
    x, weight, bias, moves, (mean, scale) = given(SHAPES[0])
    x, mean = 0.25 * (x + 30), mean + 7.5
    groups = grouping(IDS, 6, x)
    exact = settle(x.to(dtype).double(), weight, bias, moves, (mean, scale), groups)
    cast = [value.to(dtype) for value in (x, weight, bias, moves, mean, scale)]
    got = settle(*cast[:4], (cast[4].double(), cast[5].double()), groups)
    close = 2e-2 if dtype.itemsize == 2 else 1e-4
    torch.testing.assert_close(got.weight.double(), exact.weight, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_maps_far_from_zero_are_rounded_once(dtype: torch.dtype) -> None:
    x, weight, bias, moves, (mean, scale) = given(SHAPES[0])
    x, inputs = (x + 50).to(dtype), (weight, bias, moves)
    source, groups = (mean + 50, scale), grouping(IDS, 6, x)
    gradient = torch.randn(SHAPES[0], generator=torch.Generator().manual_seed(1)).to(dtype)
    answers = []
    for wide, narrow in ((torch.float64, torch.float64), (torch.float32, dtype)):
        parts = [value.to(wide).requires_grad_() for value in inputs]
        leaves = [x.to(narrow).requires_grad_(), *parts]
        output = settle(*leaves, tuple(part.to(wide) for part in source), groups).output
        answers.append((output, *torch.autograd.grad(output, leaves, gradient.to(narrow))))
    for exact, ours in zip(*answers, strict=True):
        close = 2 * torch.finfo(ours.dtype).eps if ours.dtype == dtype else 2e-3
        bound = close * exact.abs().max().item()
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=bound)


def test_no_move_leaves_the_parameters_as_they_are_bit_for_bit() -> None:
    x, weight, bias, moves, source = given(SHAPES[0], dtype=torch.float32)
    settled = settle(x, weight, bias, 0 * moves, source, grouping(IDS, 6, x))
    assert torch.equal(settled.weight, weight)
    assert torch.equal(settled.bias, bias)


def test_a_group_does_not_notice_what_is_in_the_others() -> None:
    *inputs, source = given(SHAPES[0])
    changed = inputs[0].clone()
    changed[IDS == 1] = float("inf")
    groups = grouping(IDS, 6, changed)
    before, after = (settle(x, *inputs[1:], source, groups).output for x in (inputs[0], changed))
    assert torch.equal(before[IDS != 1], after[IDS != 1])
