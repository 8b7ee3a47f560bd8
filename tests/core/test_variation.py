"""What a few images tell of their look: the guess against the book, and the laws that hold for every model with it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from generalizeformer.core.backbones import build_backbone
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import channels
from generalizeformer.core.groups import Grouping, grouping
from generalizeformer.core.guessing import _Moments, settle_by_looks
from generalizeformer.core.settings import Config
from generalizeformer.core.statistics import Statistics
from generalizeformer.core.variation import MOST, RIDGE, Variation
from generalizeformer.errors import DataError, SlotError, UserError

from .test_settling import IDS, SHAPES, given

WIDTH, LOOKS, EACH = 3, 40, 30


def drawn(seed: int = 0) -> tuple[Statistics, Tensor]:
    """Images of many looks whose first channel tells the look, and whose others tell the image."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    looks = torch.arange(LOOKS).repeat_interleave(EACH)
    between, within = torch.tensor([0.5, 0.0, 0.0]).double(), torch.tensor([0.1, 0.5, 0.5]).double()
    mean = (draw(LOOKS, WIDTH) * between)[looks] + draw(len(looks), WIDTH) * within
    return Statistics(mean, (0.1 * draw(len(looks), WIDTH)).exp()), looks


def learned(directions: int = 6, prior: float = 0.0) -> Variation:
    variation = Variation({"norm": WIDTH}, directions, 1.0, guessed=prior).double()
    seen, looks = drawn()
    variation.learn({"norm": seen}, grouping(looks, len(looks), seen.mean))
    return variation


def shown(seen: Statistics) -> Tensor:
    return torch.cat((seen.mean, 0.5 * seen.variance.log()), 1)


def of_groups(variation: Variation, f: Tensor, count: float) -> Tensor:
    """The looks of groups that show f and are so large, of images that are all alike."""
    groups = Grouping(torch.arange(len(f)), torch.full((len(f),), count, dtype=f.dtype))
    return variation.guess("norm", f.dtype)(f, torch.zeros_like(f), groups)[0]


@pytest.mark.parametrize("count", [1.0, 3.0, 50.0])
def test_along_its_directions_the_guess_is_the_posterior_mean(count: float) -> None:
    """B (B + W / n)^-1 f with the W that was seen and the B that the directions make."""
    seen, looks = drawn()
    f, groups = shown(seen), grouping(looks, len(looks), seen.mean)
    apart = f - groups.mean(f)[looks]
    within = apart.T @ apart / (len(f) - LOOKS)
    within += (RIDGE * within.diagonal().mean() + 1e-6) * torch.eye(2 * WIDTH)
    variation = learned(prior=1e30)  # nothing of what lies in no direction is left
    into, back = (variation.get_buffer(f"{part}/norm") for part in ("into", "back"))
    torch.testing.assert_close(into.T @ within @ into, torch.eye(6).double(), rtol=0, atol=1e-5)
    between = (back * variation.get_buffer("ratio/norm")) @ back.T
    exact = f[:5] @ torch.linalg.solve(between + within / count, between)
    torch.testing.assert_close(of_groups(variation, f[:5], count), exact, rtol=1e-5, atol=1e-5)


def test_how_far_looks_are_apart_is_what_was_drawn() -> None:
    """0.5² of the first channel, where W has 0.1² and the ridge."""
    variation = learned()
    back, ratio = (variation.get_buffer(f"{part}/norm") for part in ("back", "ratio"))
    between = (back * ratio) @ back.T
    assert between[0, 0].sqrt().item() == pytest.approx(0.5, rel=0.3)
    assert between.diagonal()[1:].max() < 0.02


@pytest.mark.parametrize("width", [3, 200])
def test_looks_that_are_all_the_same_teach_nothing(width: int) -> None:
    """However many channels there are: in wide layers chance finds directions in which any few images differ."""
    generator = torch.Generator().manual_seed(0)
    mean = 0.5 * torch.randn(480, width, generator=generator)
    looks = torch.arange(20).repeat_interleave(24)
    seen = Statistics(mean, torch.ones(480, width))
    variation = Variation({"norm": width}, 6, 1.0, guessed=1e30)
    variation.learn({"norm": seen}, grouping(looks, 480, mean))
    before, after = shown(seen), of_groups(variation, shown(seen), 1.0)
    assert after.norm() < 0.1 * before.norm()


def test_what_tells_the_look_is_believed_and_what_tells_the_image_is_not() -> None:
    told, other = of_groups(learned(prior=1e30), torch.eye(6, dtype=torch.float64)[:2], 1.0)
    assert told[0] > 0.7
    assert other.abs().max() < 0.1


def test_the_more_images_the_more_is_believed_up_to_all() -> None:
    seen, _ = drawn(1)
    f, variation = shown(seen)[:1], learned(prior=5.0)
    guesses = [of_groups(variation, f, n) for n in (1.0, 20.0, 1e9)]
    distances = [(guess - f).norm().item() for guess in guesses]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-6


def test_before_anything_is_learned_it_is_the_prior_of_so_many_images() -> None:
    variation = Variation({"norm": WIDTH}, 4, 1.0, guessed=3.0)
    f = torch.ones(2, 6, dtype=torch.float64)
    for count, share in ((1.0, 0.25), (9.0, 0.75)):
        torch.testing.assert_close(of_groups(variation, f, count), share * f)


def arriving(looks: tuple[float, ...]) -> tuple[Tensor, Tensor, Grouping]:
    """What a group and its twenty images show: the first channel tells of these looks in turn."""
    seen, _ = drawn(3)
    f = shown(Statistics(seen.mean[:20], seen.variance[:20]))
    f[:, 0] = 0.1 * f[:, 1] + torch.tensor(looks).double().repeat(20)[:20]
    groups = grouping(None, 20, f)
    return groups.mean(f), f, groups


def test_images_of_one_look_have_their_groups_look() -> None:
    guess = learned(prior=5.0).guess("norm", torch.float64)
    together, each = guess(*arriving((0.7,)))
    assert (each - together).norm(dim=1).mean() < 0.1 * together.norm()


def test_images_of_looks_that_differ_have_looks_of_their_own() -> None:
    guess = learned(prior=5.0).guess("norm", torch.float64)
    together, each = guess(*arriving((-0.7, 0.7)))
    assert together[0, 0].abs() < 0.1
    assert (each[0::2, 0] < -0.5).all()
    assert (each[1::2, 0] > 0.5).all()
    assert (each - together)[:, 1:].abs().mean() < 0.1  # what tells the image is not believed


def test_what_images_vary_more_than_those_of_a_look_is_what_their_looks_differ() -> None:
    guess = learned(prior=1e30).guess("norm", torch.float64)
    shown, f, groups = arriving((-0.7, 0.0, 0.7))
    z = f @ guess.into
    differ = torch.minimum((z.var(0) - 1).clamp(min=0), MOST * guess.ratio)
    gain = guess.ratio / (guess.ratio + (1 + differ) / 20)
    exact = ((shown @ guess.into) * gain) @ guess.back.T
    exact = exact + ((z - z.mean(0)) * differ / (1 + differ)) @ guess.back.T
    torch.testing.assert_close(guess(shown, f, groups)[1], exact)


def test_few_looks_leave_directions_empty_and_learning_again_forgets() -> None:
    variation = learned()
    seen, looks = drawn()
    few = looks < 2
    part = Statistics(seen.mean[few], seen.variance[few])
    variation.learn({"norm": part}, grouping(looks[few], int(few.sum()), part.mean))
    assert (variation.get_buffer("ratio/norm")[2:] == 0).all()
    assert (variation.get_buffer("into/norm")[:, 2:] == 0).all()


def test_a_layer_that_was_not_seen_is_named() -> None:
    seen, looks = drawn()
    with pytest.raises(SlotError, match=r"norm: it was not called .* leave it out with Selection"):
        Variation({"norm": WIDTH}, 2, 1.0).learn({}, grouping(looks, len(looks), seen.mean))


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_and_gradients_of_layers_that_guess_are_those_of_the_formula(shape: Any) -> None:
    *inputs, source = given(shape, scale=2.0)
    groups = grouping(IDS, 6, inputs[0])
    guess = learned(prior=2.0).guess("norm", torch.float64)

    def plain(x: Tensor, weight: Tensor, bias: Tensor, moves: Tensor) -> Tensor:
        mean, scale = source
        flat = (x.reshape(6, 3, -1) - mean[:, None]) * scale[:, None]
        members = [flat[g == IDS].transpose(0, 1).flatten(1) for g in range(3)]
        together, each = (
            torch.cat(
                (
                    values.mean(-1).clamp(-3, 3),
                    (0.5 * values.var(-1, correction=0).clamp(min=1e-6).log()).clamp(-2, 2),
                ),
                1,
            )
            for values in (_padded(members), flat)
        )
        _, looks = guess(together, each, groups)
        away, spread = looks.chunk(2, 1)
        gamma = weight[IDS] * (-moves[IDS, 1] * spread).exp()
        beta = bias[IDS] - gamma * moves[IDS, 0] * away
        return (flat * gamma[..., None] + beta[..., None]).reshape(x.shape)

    answers = []
    for compute in (plain, lambda *of: settle_by_looks(*of, source, groups, guess).output):
        leaves = [value.clone().requires_grad_() for value in inputs]
        output = compute(*leaves)
        answers.append((output, *torch.autograd.grad(output.sin().sum(), leaves)))
    for ours, exact in zip(answers[1], answers[0], strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_moments_keep_their_digits_far_from_zero(dtype: torch.dtype) -> None:
    x = (given(SHAPES[0])[0] + 50).to(dtype)
    of = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(1)).unbind()
    leaves = [x.double().requires_grad_(), x.clone().requires_grad_()]
    exact, ours = (
        torch.autograd.grad(_Moments.apply(leaf), leaf, tuple(part.to(wide) for part in of))[0]
        for leaf, wide in zip(leaves, (torch.float64, torch.float32), strict=True)
    )
    bound = torch.finfo(dtype).eps * exact.abs().max().item()
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=bound)


def _padded(members: list[Tensor]) -> Tensor:
    """(groups, channels, values) of groups of different sizes, as often as makes them equally many."""
    longest = math.lcm(*[part.shape[1] for part in members])
    return torch.stack([part.repeat(1, longest // part.shape[1]) for part in members])


CONFIG = Config(generator=channels.Config(layers=1, width=8, heads=2, variation=4, prior=5.0))


def images(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 28, 28, generator=generator, dtype=torch.float64)


def model(config: Config = CONFIG, move: float = 0.3) -> GeneralizeFormer:
    torch.manual_seed(0)
    made = GeneralizeFormer(build_backbone("digits-small", 4, channels=1).double(), config).eval()
    looks = torch.arange(8).repeat_interleave(6)
    strength = torch.linspace(0.5, 2, 8, dtype=torch.float64)[looks].reshape(-1, 1, 1, 1)
    made.learn_looks(images(48) * strength, looks)
    if move:
        made.generator.begin(move, 0.1, 0.5)
    return made


def test_an_untrained_generator_gives_the_source_bit_for_bit() -> None:
    made = model(move=0)
    source = made.slots.parameters_of(made.backbone)
    for name, value in made.generate(images(5), torch.tensor([0, 1, 0, 1, 1])).items():
        assert torch.equal(value, source[name].expand_as(value))


def test_many_groups_at_once_are_a_loop_over_them_and_others_do_not_matter() -> None:
    made, groups = model(), torch.tensor([0, 1, 0, 2, 1, 0])
    together = made(images(6), groups)
    for group in range(3):
        mine = groups == group
        torch.testing.assert_close(made(images(6)[mine]), together[mine], rtol=1e-9, atol=1e-9)
    spoilt = images(6)
    spoilt[groups == 1] *= 1e30
    kept = groups != 1
    torch.testing.assert_close(made(spoilt, groups)[kept], together[kept], rtol=1e-12, atol=1e-12)


def directions(made: GeneralizeFormer) -> list[Tensor]:
    assert made.variation is not None
    return [value.clone() for value in made.variation.buffers()]


def test_looks_are_learned_as_layers_move_and_anew_each_time() -> None:
    made = model(move=0)
    looks = torch.arange(8).repeat_interleave(6)
    made.learn_looks(images(48), looks)
    still = directions(made)
    made.generator.begin(0.3, 0.1, 0.5)
    made.learn_looks(images(48), looks)
    moved = directions(made)
    made.learn_looks(images(48, seed=9), looks)
    made.learn_looks(images(48), looks)
    assert all(map(torch.equal, directions(made), moved))
    assert not all(map(torch.allclose, still, moved))


def test_it_matters_most_to_single_images() -> None:
    made = model()
    plain = model(replace(CONFIG, generator=replace(CONFIG.generator, variation=0, prior=0.0)))
    with torch.no_grad():
        changes = [
            (made(images(40), groups) - plain(images(40), groups)).abs().mean()
            for groups in (torch.arange(40), torch.zeros(40).long())
        ]
    assert changes[0] > 1e-4
    # Of an image in a batch, half of the answers are of its own model.
    assert changes[0] > 1.2 * changes[1]


def test_autocast_leaves_the_guess_its_digits() -> None:
    *inputs, source = given(SHAPES[0])
    groups, guess = grouping(IDS, 6, inputs[0]), learned(prior=5.0).guess("norm", torch.float64)
    exact = settle_by_looks(*inputs, source, groups, guess)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = settle_by_looks(*inputs, source, groups, guess)
    assert all(map(torch.equal, again, exact))


def test_gradients_reach_every_weight_of_the_generator() -> None:
    made = model()
    made.train()
    made(images(6), torch.tensor([0, 1, 0, 2, 1, 0])).square().sum().backward()
    assert all(weight.grad is not None for weight in made.generator.parameters())
    assert all(weight.grad is None for weight in made.backbone.parameters())
    assert not list(made.variation.parameters())  # type: ignore[union-attr]


def test_the_saved_model_answers_like_this_one(tmp_path: Path) -> None:
    made = model()
    made.save_pretrained(tmp_path)
    again = GeneralizeFormer.from_pretrained(tmp_path, backbone=made.backbone)
    assert torch.equal(again(images(5)), made(images(5)))
    assert again.variation is not None
    assert all(map(torch.equal, again.variation.buffers(), made.variation.buffers()))  # type: ignore[union-attr]


def test_looks_that_teach_nothing_are_refused_and_without_need_nothing_is_learned() -> None:
    made = model()
    for looks in (torch.zeros(4).long(), torch.tensor([0, 0, 1, 2])):
        with pytest.raises(DataError, match="give two looks or more, of two images or more each"):
            made.learn_looks(images(4), looks)
    with pytest.raises(UserError, match=r"variation is -1; give a number"):
        channels.Config(variation=-1)
    for config in (channels.Config(variation=0), channels.Config(settle=False)):
        plain = GeneralizeFormer(
            build_backbone("digits-small", 4, channels=1), Config(generator=config)
        )
        assert plain.variation is None
        assert plain.likeness is None
    plain.learn_looks(images(4).float(), torch.tensor([0, 0, 1, 1]))
    assert plain.variation is None
