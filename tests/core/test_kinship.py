"""Images of a group that look alike count for each other; the rest of a mixed batch does not."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import Grouping, grouping, side_by_side
from generalizeformer.core.kinship import kindred
from generalizeformer.core.settings import Config
from generalizeformer.core.settling import settle
from generalizeformer.core.statistics import Statistics, pool

from .nets import GENERATORS, digits, images, perturbed
from .test_settling import given as settling_inputs
from .test_settling import plain

LIKE = torch.zeros(1, dtype=torch.float64)
GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])


def values(count: int, *rest: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, *rest, generator=generator, dtype=torch.float64)


def looking(looks: Tensor) -> dict[str, Statistics]:
    return {"first": Statistics(looks, torch.ones_like(looks))}


def among(groups: list[int], looks: Tensor, width: float = 0.3) -> Grouping:
    return kindred(looking(looks), grouping(torch.tensor(groups), len(groups), LIKE), width)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_images_that_look_alike_count_as_a_group_does(groups: list[int]) -> None:
    kin, x = among(groups, torch.zeros(len(groups), 3, dtype=torch.float64)), values(len(groups), 2)
    plain = grouping(torch.tensor(groups), len(groups), LIKE)
    torch.testing.assert_close(kin.mean(x), plain.spread(plain.mean(x)))
    torch.testing.assert_close(kin.sizes, plain.spread(plain.sizes))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_images_of_two_targets_are_two_groups(groups: list[int]) -> None:
    of = torch.arange(len(groups)) % 2
    looks = 100.0 * of.double().unsqueeze(1)
    kin, x = among(groups, looks.clamp(0, 3), width=1e-3), values(len(groups), 2)
    apart = grouping(10 * torch.tensor(groups) + of, len(groups), LIKE)
    torch.testing.assert_close(kin.mean(x), apart.spread(apart.mean(x)))
    torch.testing.assert_close(kin.sizes, apart.spread(apart.sizes))


def test_weights_fall_with_the_squared_distance() -> None:
    kin = among([0, 0], torch.tensor([[0.0, 0.0], [0.6, 0.2]], dtype=torch.float64))
    # The mean over both channels of 0.36 and 0.04 is 0.2.
    other = torch.tensor(-0.2 / 0.3, dtype=torch.float64).exp()
    mean = kin.mean(torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(mean, torch.stack([other, torch.ones_like(other)]) / (1 + other))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_image_reaches_its_own_group_alone(bad: float) -> None:
    looks, x = values(5, 3), values(5, 2)
    looks[0] = bad
    x[0] = bad
    kin = among([0, 1, 0, 1, 1], looks)
    assert kin.sizes.isfinite().all()
    clean = among([1, 1, 1], looks[[1, 3, 4]])
    torch.testing.assert_close(kin.mean(x)[[1, 3, 4]], clean.mean(x[[1, 3, 4]]))


def test_only_the_first_quarter_of_the_layers_tells_looks_and_all_of_it_alike() -> None:
    near, far = torch.zeros(2, 4, dtype=torch.float64), 3 * torch.eye(2, 4, dtype=torch.float64)
    seen = [looking(part)["first"] for part in (near, far, *[near] * 2, *[far] * 4)]
    both = grouping(None, 2, LIKE)
    # Two of eight layers: the second differs by 9 in two of four channels, which is 4.5, and by half of it over both.
    kin = kindred(dict(zip("abcdefgh", seen, strict=True)), both, 1.0).kin
    assert kin is not None
    other = torch.tensor(-2.25, dtype=torch.float64).exp()
    torch.testing.assert_close(
        kin.weights[0, 0], torch.stack([torch.ones_like(other), other]) / (1 + other)
    )


def test_kin_are_pooled_in_single_precision_under_autocast() -> None:
    kin, x = among([0, 0, 0], values(3, 2)), values(3, 500).float()
    with torch.autocast("cpu", torch.bfloat16):
        under = kin.mean(x)
    assert torch.equal(under, kin.mean(x))
    assert under.dtype == torch.float32


def test_a_model_without_norm_layers_or_features_answers_whole_groups() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double()
    x = values(4, 3, 2, 2)
    torch.testing.assert_close(GeneralizeFormer(plain, Config(kin=0.3))(x), plain(x))
    blind = replace(GENERATORS["channels"], inputs=("parameters", "gradients"))
    model, seen = perturbed(digits(), blind, singly=True, kin=0.3), images(6)
    answers = model(seen, GROUPS)
    model.config = replace(model.config, kin=None)
    assert torch.equal(answers, model(seen, GROUPS))


def test_sharing_is_the_mean_the_other_way_round() -> None:
    kin = among([0, 1, 0, 1, 1], values(5, 3)).kin
    assert kin is not None
    x, y = values(5, 2), values(5, 4)[:, :2]
    torch.testing.assert_close((kin.mean(x) * y).sum(), (x * kin.shared(y)).sum())


def test_kin_and_the_same_images_one_by_one_go_side_by_side() -> None:
    kin, x, y = among([0, 1, 0, 1, 1], values(5, 3)), values(5, 2), values(5, 4)[:, :2]
    alone = kin.each()
    torch.testing.assert_close(alone.mean(x), x)
    assert alone.sizes.tolist() == [1] * 5
    together = side_by_side([kin, alone])
    expected = torch.cat([kin.mean(x), y])
    torch.testing.assert_close(together.mean(torch.cat([x, y])), expected)
    torch.testing.assert_close(together.spread(together.sizes), torch.cat([kin.sizes, alone.sizes]))


def test_how_mixed_groups_are_goes_along() -> None:
    share = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    kin = replace(among([0, 1, 0, 1, 1], values(5, 3)), mixed=share)
    together = side_by_side([kin, kin.each()]).mixed
    assert together is not None
    assert torch.equal(together, share.repeat(2))
    plain = replace(grouping(GROUPS, 6, LIKE), mixed=share[:3])
    again = side_by_side([plain.repeat(2)]).mixed
    assert again is not None
    assert torch.equal(again, share[:3])


def test_statistics_of_kin_are_those_of_a_weighted_batch() -> None:
    kin, x = among([0, 0, 0], values(3, 2)), values(3, 2, 50)
    assert kin.kin is not None
    weights = kin.kin.weights[0]
    seen = pool(Statistics(x.mean(2), x.var(2, correction=0)), kin)
    mean = torch.einsum("ij,jcs->ic", weights, x) / 50
    square = torch.einsum("ij,jcs->ic", weights, x.square()) / 50
    torch.testing.assert_close(seen.mean, mean)
    torch.testing.assert_close(seen.variance, square - mean.square())


@pytest.mark.parametrize("shape", [(6, 3, 4, 5), (6, 3)])
def test_layers_settle_among_kin_and_their_gradients_are_autograd_s(shape: tuple[int, ...]) -> None:
    x, weight, bias, moves, source = settling_inputs(shape)
    # Two looks far apart in every group, so that kin are the finer groups that `plain` loops over.
    ids = torch.tensor([1, 0, 1, 2, 1, 0])
    looks = 3.0 * (ids == 1).double().unsqueeze(1)
    kin = among([0, 1, 0, 0, 0, 1], looks, width=1e-3)
    answers = []
    for compute in (plain, lambda *of: settle(*of[:1], *(o[ids] for o in of[1:4]), of[4], kin)[0]):
        leaves = [value.clone().requires_grad_() for value in (x, weight, bias, moves)]
        output = compute(*leaves, source)
        answers.append((output, *torch.autograd.grad(output.sin().sum(), leaves)))
    for ours, exact in zip(answers[1], answers[0], strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-7, atol=1e-9)


def test_gradients_through_soft_weights_are_right() -> None:
    x, weight, bias, moves, source = settling_inputs((6, 3, 4))
    ids, kin = torch.tensor([1, 0, 1, 2, 1, 0]), among([0, 1, 0, 0, 0, 1], values(6, 2))
    leaves = [
        value.clone().requires_grad_() for value in (x, *(o[ids] for o in (weight, bias, moves)))
    ]
    assert torch.autograd.gradcheck(lambda *of: settle(*of, source, kin).output, leaves)


def test_mixed_targets_do_not_disturb_each_other() -> None:
    backbone, x = digits(), images(12)
    x[6:] = 4 + 0.3 * x[6:]  # another look
    for kin, most in ((None, 1.0), (1e-3, 1e-6)):
        model = perturbed(backbone, strengths=(1.0,), singly=True, kin=kin)
        alone = torch.cat([model(x[:6]), model(x[6:])])
        differs = (model(x) - alone).abs().amax()
        assert differs < most if kin else differs > 1e-4


def test_the_paper_s_generator_takes_whole_groups() -> None:
    model, x = perturbed(digits(), GENERATORS["rows"], singly=True, kin=0.3), images(6)
    before = model(x, GROUPS)
    model.config = replace(model.config, kin=None)
    assert torch.equal(before, model(x, GROUPS))


@pytest.mark.parametrize("kin", [0.0, -1.0, float("nan")])
def test_a_width_that_is_none_is_refused(kin: float) -> None:
    with pytest.raises(ValueError, match=r"config: kin is .*; give a number above 0, or null"):
        Config(kin=kin)
