import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn import functional as F
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as published

from generalizeformer.errors import DataError
from generalizeformer.imaging import augmentation, colour
from generalizeformer.imaging.augmentation import RECIPES, Config, augment, recipe
from generalizeformer.imaging.pixels import to_bytes, to_unit


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def pixels(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=seeded(5))


def smooth(*shape: int) -> Tensor:
    """Images without sharp edges."""
    small = torch.rand(shape[0], shape[1], 4, 4, generator=seeded(6))
    return to_bytes(F.interpolate(small, shape[2:], mode="bicubic").clamp(0, 1))


def boxes(count: int, height: int, width: int, config: Config) -> Tensor:
    assert config.crop is not None
    images = torch.empty(count, 1, height, width, dtype=torch.uint8)
    return augmentation._boxes(images, seeded(), config.crop, config.ratio)


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(sorted(RECIPES)),
    count=st.integers(0, 5),
    channels=st.integers(1, 4),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    seed=st.integers(0, 50),
)
def test_shape_and_type_stay_and_the_seed_decides(
    name: str, count: int, channels: int, height: int, width: int, seed: int
) -> None:
    images = pixels(count, channels, height, width)
    before = images.clone()
    changed = augment(images, seeded(seed), recipe(name))
    assert changed.shape == images.shape
    assert changed.dtype == torch.uint8
    assert torch.equal(images, before)
    assert torch.equal(changed, augment(images, seeded(seed), recipe(name)))


@pytest.mark.parametrize("name", ["domainbed", "authors"])
def test_one_image_many_times_becomes_as_many_images(name: str) -> None:
    changed = augment(pixels(1, 3, 16, 16).repeat(20, 1, 1, 1), seeded(), recipe(name))
    assert len(torch.unique(changed.flatten(1), dim=0)) == 20


@pytest.mark.parametrize("shape", [(4, 3, 9, 9), (3, 1, 5, 31), (2, 3, 64, 7), (2, 1, 1, 1)])
def test_with_everything_off_or_the_whole_image_as_crop_nothing_changes(shape: Any) -> None:
    images = pixels(*shape)
    assert torch.equal(augment(images, seeded(), Config()), images)
    exact = Config(crop=(1.0, 1.0), ratio=(shape[3] / shape[2],) * 2)
    assert torch.equal(augment(images, seeded(), exact), images)


def test_a_square_image_cropped_to_its_whole_area_is_unchanged_for_every_ratio() -> None:
    images = pixels(50, 3, 32, 32)
    assert torch.equal(augment(images, seeded(), Config(crop=(1.0, 1.0))), images)


def test_a_certain_flip_is_the_mirror_image() -> None:
    images = pixels(5, 3, 7, 10)
    assert torch.equal(augment(images, seeded(), Config(flip_chance=1.0)), images.flip(3))


def test_half_of_the_images_are_flipped_at_even_chances() -> None:
    images = pixels(1, 1, 4, 4).repeat(2000, 1, 1, 1)
    changed = augment(images, seeded(), Config(flip_chance=0.5))
    flipped = (changed == images.flip(3)).flatten(1).all(1)
    assert torch.equal(changed[~flipped], images[~flipped])
    assert 0.45 < flipped.float().mean() < 0.55


def test_a_shift_moves_whole_pixels_over_black_to_every_place_within_reach() -> None:
    images = pixels(1, 1, 6, 5).repeat(400, 1, 1, 1)
    padded = F.pad(images[0], (2, 2, 2, 2))
    expected = {
        tuple(padded[:, top : top + 6, left : left + 5].flatten().tolist())
        for top in range(5)
        for left in range(5)
    }
    shifted = augment(images, seeded(), recipe("digits"))
    assert {tuple(image.flatten().tolist()) for image in shifted} == expected


@pytest.mark.parametrize(("height", "width"), [(40, 40), (33, 50)])
def test_crops_are_those_of_torchvision(height: int, width: int) -> None:
    config, images = Config(crop=(0.3, 1.0)), smooth(8, 3, height, width)
    changed = augment(images, seeded(), config)
    for image, box, mine in zip(images, boxes(8, height, width, config), changed, strict=True):
        theirs = published.resized_crop(image, *box.tolist(), [height, width], antialias=False)
        assert (mine.int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize("size", [(60, 60), (50, 90), (90, 20)])
@pytest.mark.parametrize("name", ["domainbed", "authors"])
def test_crops_are_distributed_as_in_torchvision(name: str, size: tuple[int, int]) -> None:
    config, image = recipe(name), torch.empty(1, *size, dtype=torch.uint8)
    assert config.crop is not None
    mine = boxes(1500, *size, config).double()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        draw = v2.RandomResizedCrop(size, scale=config.crop, ratio=config.ratio).make_params
        drawn = [draw([image]) for _ in range(1500)]
    theirs = torch.tensor([[d[k] for k in ("top", "left", "height", "width")] for d in drawn])
    for quantile in (0.1, 0.5, 0.9):
        mine_there, theirs_there = mine.quantile(quantile, 0), theirs.double().quantile(quantile, 0)
        assert (mine_there - theirs_there).abs().max() <= 2
    torch.testing.assert_close(mine.mean(0), theirs.double().mean(0), atol=0.6, rtol=0)


def test_crops_lie_in_the_image_with_areas_and_ratios_as_asked() -> None:
    top, left, tall, wide = boxes(3000, 200, 200, Config(crop=(0.5, 0.7))).unbind(1)
    assert min(top.min(), left.min()) == 0
    assert (top + tall).max() == (left + wide).max() == 200
    areas, ratios = tall * wide / 200**2, (wide / tall).log()
    assert 0.49 < areas.min() < 0.51
    assert 0.69 < areas.max() < 0.71
    assert areas.mean() == pytest.approx(0.6, abs=0.01)  # uniform
    assert ratios.mean() == pytest.approx(0, abs=0.02)  # as often wide as tall
    assert ratios.abs().max() == pytest.approx(math.log(4 / 3), abs=0.02)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (colour.brightness, published.adjust_brightness),
        (colour.contrast, published.adjust_contrast),
        (colour.saturation, published.adjust_saturation),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_factors_act_as_in_torchvision(mine: Any, theirs: Any, channels: int) -> None:
    images, factors = pixels(5, channels, 16, 16), torch.tensor([0.0, 0.5, 1.0, 1.3, 2.0])
    changed = to_bytes(mine(to_unit(images), factors))
    for image, factor, answer in zip(images, factors.tolist(), changed, strict=True):
        assert (answer.int() - theirs(image, factor).int()).abs().max() <= 1
    assert torch.equal(changed[2], images[2])


def test_hues_turn_as_in_torchvision() -> None:
    images, shifts = pixels(5, 3, 32, 32), torch.tensor([-0.5, -0.2, 0.0, 0.1, 0.5])
    images[:, :, :4] = images[:, :1, :4]  # greys
    images[:, 2, 4:8] = images[:, 0, 4:8]  # two channels alike
    changed = to_bytes(colour.hue(to_unit(images), shifts))
    for image, shift, answer in zip(images, shifts.tolist(), changed, strict=True):
        assert (answer.int() - published.adjust_hue(image, shift).int()).abs().max() <= 2
    assert torch.equal(changed[2], images[2])
    assert torch.equal(changed[:, :, :4], images[:, :, :4])


def test_colours_change_in_a_drawn_order_with_torchvisions_steps() -> None:
    config = replace(recipe("domainbed"), crop=None, flip_chance=0.0, grey_chance=0.0)
    images, orders = smooth(4, 3, 16, 16), set()
    steps = {
        colour.brightness: published.adjust_brightness,
        colour.contrast: published.adjust_contrast,
        colour.saturation: published.adjust_saturation,
        colour.hue: published.adjust_hue,
    }
    for seed in range(12):
        changes = augmentation._changes(images, seeded(seed), config)
        orders.add(tuple(change for change, _ in changes))
        changed = augment(images, seeded(seed), config)
        for index, image in enumerate(images):
            unit = image / 255  # bytes in between would add an error at every step
            for change, amounts in changes:
                unit = steps[change](unit, float(amounts[index]))  # type: ignore[index]
            expected = (255 * unit).round().int()
            assert (changed[index].int() - expected).abs().max() <= 1
    assert len(orders) > 6
    assert all(len(order) == 4 for order in orders)


@pytest.mark.parametrize("strength", [0.3, 1.5])
def test_factors_are_uniform_and_never_negative(strength: float) -> None:
    images = torch.empty(4000, 1, 1, 1, dtype=torch.uint8)
    config = Config(brightness=strength)
    ((_, factors),) = augmentation._changes(images, seeded(), config)
    low, high = max(0.0, 1 - strength), 1 + strength
    spread = torch.linspace(low, high, 4000)
    assert low <= factors.min()
    assert factors.max() <= high
    assert (factors.sort().values - spread).abs().max() < 0.04 * (high - low)


def test_hue_shifts_go_either_way() -> None:
    images = torch.empty(4000, 3, 1, 1, dtype=torch.uint8)
    ((_, shifts),) = augmentation._changes(images, seeded(), Config(hue=0.3))
    assert (shifts.sort().values - torch.linspace(-0.3, 0.3, 4000)).abs().max() < 0.024


def test_a_share_of_the_images_loses_its_colours_to_torchvisions_grey() -> None:
    images = pixels(1, 3, 4, 4).repeat(2000, 1, 1, 1)
    changed = augment(images, seeded(), Config(grey_chance=0.1))
    grey = (changed == changed[:, :1]).flatten(1).all(1)
    assert 0.07 < grey.float().mean() < 0.13
    assert torch.equal(changed[~grey], images[~grey])
    expected = published.rgb_to_grayscale(images[grey], num_output_channels=3)
    assert (changed[grey].int() - expected.int()).abs().max() <= 1


def test_grey_images_know_no_saturation_hue_or_greyscale() -> None:
    images = pixels(6, 1, 8, 8)
    config = Config(saturation=0.9, hue=0.5, grey_chance=1.0)
    assert torch.equal(augment(images, seeded(), config), images)


def test_how_many_images_are_changed_at_once_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = pixels(7, 3, 12, 12)
    together = augment(images, seeded(), recipe("domainbed"))
    monkeypatch.setattr(augmentation, "CACHED", 3 * images[0].numel())
    apart = augment(images, seeded(), recipe("domainbed"))
    assert (together.int() - apart.int()).abs().max() <= 1


def test_draws_do_not_depend_on_the_pixels() -> None:
    one, other = seeded(), seeded()
    augment(pixels(4, 3, 8, 8), one, recipe("domainbed"))
    augment(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), other, recipe("domainbed"))
    assert torch.equal(one.get_state(), other.get_state())


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_draws_do_not_depend_on_the_device(name: str) -> None:
    images = smooth(6, 3, 24, 24)
    here = augment(images, seeded(), recipe(name))
    there = augment(images.cuda(), seeded(), recipe(name))
    assert there.device.type == "cuda"
    assert (here.int() - there.cpu().int()).abs().max() <= 1


def test_a_misspelt_recipe_is_told_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no recipe 'domainbet'; did you mean 'domainbed'\?"):
        recipe("domainbet")
    with pytest.raises(DataError, match="choose one of: domainbed, authors, digits"):
        recipe("zzz")


@pytest.mark.parametrize(
    ("setting", "value", "right"),
    [
        ("crop", (0.0, 1.0), "two numbers above 0, the smaller first"),
        ("ratio", (2.0, 1.0), "two numbers above 0, the smaller first"),
        ("flip_chance", 1.5, "between 0 and 1,"),
        ("hue", 0.6, "between 0 and 0.5,"),
        ("brightness", -0.1, "0 or more"),
        ("contrast", math.nan, "0 or more"),
        ("shift", -1, "0 or more"),
    ],
)
def test_a_setting_that_cannot_be_drawn_from_is_refused(
    setting: str, value: Any, right: str
) -> None:
    with pytest.raises(DataError, match=rf"augmentation: {setting} is .*{right}"):
        Config(**{setting: value})
