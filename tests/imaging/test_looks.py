from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from generalizeformer.imaging.looks import Config, apply

QUIET = Config(noise=0.0, geometry=True)


def pixels(*shape: int) -> Tensor:
    generator = Generator().manual_seed(5)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def look(images: Tensor, groups: Tensor, config: Config, seed: int = 0) -> Tensor:
    return apply(images, groups, Generator().manual_seed(seed), config)


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 5),
    channels=st.integers(1, 4),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    geometry=st.booleans(),
    seed=st.integers(0, 50),
)
def test_shape_and_type_stay_for_images_of_every_size(
    count: int, channels: int, height: int, width: int, geometry: bool, seed: int
) -> None:
    images = pixels(count, channels, height, width)
    changed = look(images, torch.arange(count) // 2, Config(geometry=geometry), seed)
    assert changed.shape == images.shape
    assert changed.dtype == torch.uint8


@pytest.mark.parametrize("geometry", [False, True])
def test_strength_zero_is_the_identity_and_gives_a_copy(geometry: bool) -> None:
    images = pixels(6, 3, 8, 8)
    same = look(images, torch.arange(6), Config(strength=0.0, geometry=geometry))
    assert torch.equal(same, images)
    assert same.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("geometry", [False, True])
def test_the_identity_is_the_limit_of_small_strengths(geometry: bool) -> None:
    images = pixels(6, 3, 8, 8)
    groups = torch.arange(6)
    nearly = look(images, groups, Config(strength=1e-6, geometry=geometry))
    assert torch.equal(nearly, images)
    assert not torch.equal(look(images, groups, Config(geometry=geometry)), images)


@settings(deadline=None, max_examples=20)
@given(
    groups=st.lists(st.integers(0, 3), min_size=1, max_size=10),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 100),
)
def test_equal_images_of_a_group_look_equal(groups: list[int], channels: int, seed: int) -> None:
    images = pixels(1, channels, 9, 7).repeat(len(groups), 1, 1, 1)
    ids = torch.tensor(groups)
    changed = look(images, ids, QUIET, seed)
    for group in set(groups):
        mine = changed[ids == group]
        assert torch.equal(mine, mine[:1].expand_as(mine))


def test_equal_images_of_many_groups_look_different() -> None:
    images = pixels(1, 3, 9, 9).repeat(40, 1, 1, 1)
    changed = look(images, torch.arange(40), QUIET)
    assert len(torch.unique(changed.flatten(1), dim=0)) >= 35


def test_the_numbers_of_the_groups_do_not_matter() -> None:
    images, groups = pixels(4, 3, 8, 8), torch.tensor([0, 1, 1, 2])
    shifted = torch.tensor([-7, 40, 40, 10**12])
    assert torch.equal(look(images, groups, Config()), look(images, shifted, Config()))


def test_noise_differs_within_a_group() -> None:
    config = Config(strength=1.0, chance=1.0, noise=0.2)
    images = torch.full((2, 1, 16, 16), 128, dtype=torch.uint8)
    changed = look(images, torch.zeros(2, dtype=torch.int64), config)
    assert not torch.equal(changed[0], changed[1])


@pytest.mark.parametrize("geometry", [False, True])
def test_the_generator_decides(geometry: bool) -> None:
    images, groups = pixels(8, 3, 12, 12), torch.arange(8) // 2
    config = Config(geometry=geometry)
    assert torch.equal(look(images, groups, config, 1), look(images, groups, config, 1))
    assert not torch.equal(look(images, groups, config, 1), look(images, groups, config, 2))


def test_the_images_given_stay_as_they_were() -> None:
    images = pixels(4, 3, 8, 8)
    look(images, torch.arange(4), Config(geometry=True))
    assert torch.equal(images, pixels(4, 3, 8, 8))


NOTHING = Config(
    geometry=True,
    chance=1.0,
    **dict.fromkeys(("brightness", "contrast", "gamma", "gain", "offset", "saturation"), 0.0),
    **dict.fromkeys(("grey_chance", "invert_chance", "blur", "coarse_chance", "noise"), 0.0),
    **dict.fromkeys(("rotation", "scale", "shear"), 0.0),
)


def test_all_limits_at_zero_change_nothing() -> None:
    images = pixels(6, 3, 8, 8)
    assert torch.equal(look(images, torch.arange(6), NOTHING), images)


@pytest.mark.parametrize(
    "limit",
    [
        *("brightness", "contrast", "gamma", "gain", "offset", "saturation", "grey_chance"),
        *("invert_chance", "trace_chance", "blur", "coarse_chance", "noise"),
        *("rotation", "scale", "shear"),
    ],
)
def test_every_limit_alone_changes_images(limit: str) -> None:
    images = pixels(1, 3, 16, 16).repeat(8, 1, 1, 1)
    value = 1.0 if limit.endswith("chance") else 10.0 if limit == "rotation" else 0.5
    config = replace(NOTHING, **{limit: value})  # type: ignore[arg-type]
    changed = look(images, torch.arange(8), config)
    assert (changed != images).flatten(1).any(dim=1).sum() >= 6


def test_geometry_is_off_unless_asked() -> None:
    images, config = pixels(6, 3, 8, 8), replace(NOTHING, rotation=40.0)
    assert not torch.equal(look(images, torch.arange(6), config), images)
    assert torch.equal(look(images, torch.arange(6), replace(config, geometry=False)), images)


def test_a_grey_look_leaves_equal_channels_and_grey_images_grey() -> None:
    images = pixels(3, 3, 8, 8)
    grey = look(images, torch.arange(3), replace(NOTHING, grey_chance=1.0))
    assert (grey[:, 0].int() - grey[:, 2].int()).abs().max() <= 1


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"looks: strength is -1\.0; it must be 0 or more"):
        Config(strength=-1.0)
    with pytest.raises(ValueError, match=r"looks: invert_chance is 1\.5; a chance is between 0"):
        Config(invert_chance=1.5)
