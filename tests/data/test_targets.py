import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from generalizeformer.data.targets import Target, apply, changes, image_seeds, parse
from generalizeformer.errors import DataError

NAMES = ("photo", "sketch", "team@home", "x@fog:5")


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("photo", Target("photo")),
        ("photo@fog:5", Target("photo", "fog", 5.0)),
        ("sketch@rotation:-22.5", Target("sketch", "rotation", -22.5)),
        ("sketch@look:7", Target("sketch", "look", 7.0)),
        ("team@home", Target("team@home")),
        ("team@home@snow:1", Target("team@home", "snow", 1.0)),
        ("x@fog:5", Target("x@fog:5")),  # a domain's own name comes first
    ],
)
def test_a_word_is_a_domain_or_one_under_a_change(word: str, target: Target) -> None:
    assert parse(word, NAMES) == target


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("foto", "there is no domain 'foto'; it has: photo, sketch"),
        ("foto@fog:5", "there is no domain 'foto'; it has"),
        ("@fog:5", "there is no domain '@fog:5'; it has"),
        ("photo@fgo:5", "'photo@fgo:5': there is no change 'fgo'; did you mean 'fog'"),
        ("photo@zzz:5", "there is no change 'zzz'; choose one of: rotation, look, gaussian_noise"),
        ("photo@", "there is no change ''; choose"),
        ("photo@fog", "the amount is ''; fog takes a severity: 1, 2, 3, 4 or 5"),
        ("photo@fog:6", "the amount is '6'; fog takes a severity"),
        ("photo@fog:2.5", "the amount is '2.5'; fog takes a severity"),
        ("photo@fog:nan", "the amount is 'nan'; fog takes a severity"),
        ("photo@rotation:inf", "the amount is 'inf'; rotation takes degrees, such as 30"),
        ("photo@rotation:far", "the amount is 'far'; rotation takes degrees"),
        ("photo@look:-1", "the amount is '-1'; look takes the number of a look"),
        ("photo@look:inf", "the amount is 'inf'; look takes the number of a look"),
    ],
)
def test_a_word_that_means_nothing_is_one_clear_line(word: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse(word, NAMES)
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=100)
@given(word=st.text("ab@:5", max_size=8))
def test_any_word_is_understood_or_refused(word: str) -> None:
    with contextlib.suppress(DataError):
        assert parse(word, ("a", "b@a")).domain in ("a", "b@a")


def images(channels: int = 3, count: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, channels, 32, 32), dtype=torch.uint8, generator=generator)


def amounts(change: str) -> Any:
    return 30.0 if change == "rotation" else 3.0


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("change", changes())
def test_what_an_image_becomes_does_not_depend_on_the_others(change: str, channels: int) -> None:
    target, pixels = Target("a", change, amounts(change)), images(channels)
    seeds = image_seeds("a", 0, torch.arange(6))
    together = apply(target, pixels, seeds)
    assert together.shape == pixels.shape
    assert together.dtype == torch.uint8
    assert not torch.equal(together, pixels)
    alone = [apply(target, pixels[i : i + 1], seeds[i : i + 1]) for i in range(6)]
    assert torch.equal(together, torch.cat(alone))
    backwards = apply(target, pixels.flip(0), seeds.flip(0))
    assert torch.equal(together, backwards.flip(0))


@pytest.mark.parametrize("target", [Target("a"), Target("a", "rotation", 0.0)])
def test_no_change_is_no_change(target: Target) -> None:
    assert torch.equal(apply(target, images(), torch.arange(6)), images())


def test_a_quarter_turn_is_counter_clockwise() -> None:
    turned = apply(Target("a", "rotation", 90.0), images(), torch.arange(6))
    assert torch.equal(turned, images().rot90(1, (2, 3)))


def test_grey_images_lie_on_black_and_edges_of_others_are_drawn_out() -> None:
    white = torch.full((1, 3, 16, 16), 255, dtype=torch.uint8)
    target = Target("a", "rotation", 45.0)
    assert apply(target, white, torch.zeros(1).long()).min() == 255
    assert apply(target, white[:, :1], torch.zeros(1).long())[0, 0, 0, 0] == 0


def test_a_look_is_one_for_the_domain_and_another_for_another_number() -> None:
    flat = torch.full((2, 3, 8, 8), 100, dtype=torch.uint8)
    seen = set()
    for number in range(8):
        first, second = apply(Target("a", "look", float(number)), flat, torch.arange(2))
        assert torch.equal(first, second)
        seen.add(tuple(first[:, 0, 0].tolist()))
    assert len(seen) >= 5


def test_every_image_has_its_own_seed_and_seeds_depend_on_word_and_stream() -> None:
    seeds = image_seeds("a@fog:5", 0, torch.arange(50))
    assert seeds.dtype == torch.int64
    assert len(set(seeds.tolist())) == 50
    assert torch.equal(seeds[10:20], image_seeds("a@fog:5", 0, torch.arange(10, 20)))
    assert not set(seeds.tolist()) & set(image_seeds("a@fog:5", 1, torch.arange(50)).tolist())
    assert not set(seeds.tolist()) & set(image_seeds("a@fog:4", 0, torch.arange(50)).tolist())
    assert image_seeds("a", 0, torch.arange(0)).shape == (0,)
