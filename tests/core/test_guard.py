import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.guard import Guard, between, distance

from .nets import GENERATORS, by_loop, digits, images, model_of, perturb

GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])
BOTH = pytest.mark.parametrize("generator", list(GENERATORS))


@cache
def sure() -> nn.Module:
    """A source that is sure of its answers, so that they can be moved far."""
    backbone = digits()
    with torch.no_grad():
        backbone.classifier.weight.mul_(40)
    return backbone


def wild(generator: str, guard: Guard | None, scale: float = 2.0) -> GeneralizeFormer:
    return perturb(model_of(sure(), GENERATORS[generator], guard=guard), scale)


def divergence(model: GeneralizeFormer, x: Tensor, groups: Tensor) -> Tensor:
    """Mean KL of each group's answers to the plain model's, by hand."""
    with torch.no_grad():
        p, q = model.backbone(x).log_softmax(1), model(x, groups).log_softmax(1)
    each = (p.exp() * (p - q)).sum(1)
    return torch.stack([each[groups == g].mean() for g in groups.unique()])


@BOTH
@pytest.mark.parametrize("limit", [0.5, 0.05, 1e-4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_however_wild_the_generator_answers_stay_within_the_limit(
    generator: str, limit: float, seed: int
) -> None:
    x = images(6, seed=seed)
    assert (divergence(wild(generator, None), x, GROUPS) > limit).any()
    assert (divergence(wild(generator, Guard(limit=limit)), x, GROUPS) <= limit + 1e-9).all()


@BOTH
def test_a_generous_limit_changes_nothing(generator: str) -> None:
    x = images(6)
    free, guarded = wild(generator, None), wild(generator, Guard(limit=1e6))
    assert torch.equal(guarded(x, GROUPS), free(x, GROUPS))


@BOTH
def test_a_limit_of_zero_gives_the_source_s_answers(generator: str) -> None:
    x = images(6)
    model = wild(generator, Guard(limit=0.0))
    torch.testing.assert_close(model(x, GROUPS), model.backbone(x), rtol=0, atol=1e-10)


@BOTH
def test_a_generator_of_nan_falls_back_to_the_source_bit_for_bit(generator: str) -> None:
    model = wild(generator, Guard())
    with torch.no_grad():
        next(iter(model.generator.parameters())).fill_(float("nan"))
    source = model.slots.parameters_of(model.backbone)
    target = model.generate(images(6), GROUPS)
    assert all(torch.equal(value, source[n].expand_as(value)) for n, value in target.items())
    assert model(images(6), GROUPS).isfinite().all()


def moved_by(generator: str, x: Tensor) -> Tensor:
    """Mean KL of each group (rows) at 1, 3/4, 1/2 and 1/4 of the way (columns), with plain backbones."""
    model = wild(generator, None, 0.3)
    source = model.slots.parameters_of(model.backbone)
    target = model.generate(x, GROUPS)
    found = []
    for number, group in enumerate(GROUPS.unique()):
        own = x[group == GROUPS]
        p = model.backbone(own).log_softmax(1)
        for share in (1, 0.75, 0.5, 0.25):
            params = {n: torch.lerp(source[n], v[number], share) for n, v in target.items()}
            q = torch.func.functional_call(model.backbone, params, (own,)).log_softmax(1)
            found.append((p.exp() * (p - q)).sum(1).mean())
    return torch.stack(found).detach().reshape(-1, 4)


def shares(generator: str, guard: Guard, x: Tensor) -> Tensor:
    """How far each group went of the way that it would have gone unguarded."""
    free, held = wild(generator, None, 0.3), wild(generator, guard, 0.3)
    return (held.explain(x, GROUPS).distance / free.explain(x, GROUPS).distance)[:, 0]


# A layer that settles goes its way through the network's answer, which is no straight line in γ and β.
@pytest.mark.parametrize("generator", ["channels", "rows"])
@pytest.mark.parametrize("step", range(4))
def test_each_group_goes_as_far_as_its_own_answers_allow(generator: str, step: int) -> None:
    x = images(6)
    distances = moved_by(generator, x)
    ordered = distances[:, step].sort().values
    limit = (ordered[0] + ordered[1]).item() / 2  # so that groups differ in what they may do
    allowed = torch.cat([distances <= limit, torch.ones(3, 1, dtype=torch.bool)], 1)
    expected = torch.tensor([1, 0.75, 0.5, 0.25, 0])[allowed.int().argmax(1)]
    found = shares(generator, Guard(limit=limit, steps=4), x)
    assert len(expected.unique()) > 1
    torch.testing.assert_close(found, expected.double(), rtol=0, atol=1e-6)


@BOTH
def test_one_bad_group_does_not_pull_another(generator: str) -> None:
    x = images(6)
    # Not quite a group's own distance, where rounding would decide.
    limit = 1.01 * moved_by(generator, x)[:, 1].median().item()
    model = wild(generator, Guard(limit=limit), 0.3)
    x[GROUPS == 9] *= 1e4
    torch.testing.assert_close(
        model(x, GROUPS)[GROUPS != 9], by_loop(model, x, GROUPS)[GROUPS != 9], rtol=0, atol=1e-8
    )
    assert (divergence(model, x, GROUPS) <= limit + 1e-9).all()


def test_more_steps_keep_more_of_the_way() -> None:
    x = images(6)
    limit = moved_by("channels", x)[:, 1].min().item()
    few, many = (shares("channels", Guard(limit=limit, steps=s), x) for s in (1, 16))
    assert (many >= few - 1e-9).all()
    assert many.sum() > few.sum()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=4))
def test_between_is_exactly_the_source_at_zero_and_exactly_the_target_at_one(
    values: list[float],
) -> None:
    source = {"w": torch.randn(3)}
    target = {"w": 1e8 * torch.randn(len(values), 3)}
    mixed = between(source, target, torch.tensor(values))["w"]
    for number, share in enumerate(values):
        if share in (0, 1):
            assert torch.equal(mixed[number], target["w"][number] if share else source["w"])
        else:
            expected = source["w"] + share * (target["w"][number] - source["w"])
            torch.testing.assert_close(mixed[number], expected)


def test_nothing_of_a_rejected_nan_is_left_between() -> None:
    source, target = {"w": torch.ones(2)}, {"w": torch.full((1, 2), float("nan"))}
    assert torch.equal(between(source, target, torch.zeros(1))["w"], torch.ones(1, 2))


def test_the_distance_is_zero_for_equal_answers_and_positive_for_others() -> None:
    logits = torch.randn(4, 5, dtype=torch.float64)
    together = grouping(torch.tensor([0, 0, 1, 1]), 4, logits)
    assert distance(logits, logits + 3, together).abs().max() < 1e-12
    moved = logits.clone()
    moved[3, 0] += 2
    assert (distance(logits, moved, together) > 1e-3).tolist() == [False, True]


@pytest.mark.parametrize(("limit", "steps"), [(-0.1, 4), (math.nan, 4), (0.5, 0)])
def test_impossible_settings_are_refused(limit: float, steps: int) -> None:
    with pytest.raises(ValueError, match=r"the limit must be >= 0 .* at least one step"):
        Guard(limit=limit, steps=steps)


def test_an_untrained_guarded_model_answers_like_the_plain_one() -> None:
    model = model_of(digits(), guard=Guard(limit=1e-6))
    torch.testing.assert_close(model(images(6)), model.backbone(images(6)), rtol=0, atol=1e-10)
