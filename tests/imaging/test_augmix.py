from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn import functional as F
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as published

from generalizeformer.errors import DataError
from generalizeformer.imaging import augmix
from generalizeformer.imaging.augmix import MOVES, TONES, Config, views
from generalizeformer.imaging.pixels import to_bytes


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def pixels(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=seeded(5))


def smooth(*shape: int) -> Tensor:
    small = torch.rand(shape[0], shape[1], 4, 4, generator=seeded(6))
    return to_bytes(F.interpolate(small, shape[2:], mode="bicubic").clamp(0, 1))


def moved(images: Tensor, move: Any, level: float, sign: float) -> Tensor:
    given = torch.full((len(images),), level), torch.full((len(images),), sign)
    matrices = move(*given, (images.shape[2], images.shape[3]))
    return augmix._moved(images, matrices)


def difference(one: Tensor, other: Tensor) -> int:
    return int((one.int() - other.int()).abs().max())


@settings(deadline=None, max_examples=25)
@given(
    views_=st.integers(0, 4),
    count=st.integers(0, 3),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    severity=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_every_image_gets_its_views_and_the_seed_decides(
    views_: int, count: int, channels: int, height: int, width: int, severity: float
) -> None:
    images = pixels(count, channels, height, width)
    before, config = images.clone(), Config(severity=severity)
    made = views(images, views_, seeded(1), config)
    assert made.shape == (views_, *images.shape)
    assert made.dtype == torch.uint8
    assert torch.equal(images, before)
    assert torch.equal(made, views(images, views_, seeded(1), config))


def test_all_views_of_all_images_differ_even_of_equal_images() -> None:
    made = views(smooth(1, 3, 32, 32).repeat(2, 1, 1, 1), 40, seeded())
    assert len(torch.unique(made.flatten(0, 1).flatten(1), dim=0)) == 80


def test_views_belong_to_their_image_however_many_are_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(augmix, "TOGETHER", 7)
    monkeypatch.setattr(augmix, "_mixed", lambda images, *_: images)
    images = torch.tensor([32, 96, 200]).byte()[:, None, None, None].repeat(1, 3, 16, 16)
    assert torch.equal(views(images, 20, seeded()), images.expand(20, -1, -1, -1, -1))


def test_weights_of_the_chains_are_convex_and_uniform() -> None:
    weights, share = augmix._weights(4000, seeded(), 3)
    assert weights.min() >= 0
    torch.testing.assert_close(weights.sum(1), torch.ones(4000))
    # Each of three uniform weights that sum to 1 has the mean 1/3 and the variance 1/18.
    torch.testing.assert_close(weights.mean(0), torch.full((3,), 1 / 3), atol=0.02, rtol=0)
    torch.testing.assert_close(weights.var(0), torch.full((3,), 1 / 18), atol=0.005, rtol=0)
    assert (share.sort().values - torch.linspace(0, 1, 4000)).abs().max() < 0.04


def test_a_view_is_the_blend_of_an_image_with_its_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    images, chains = pixels(5, 3, 8, 8), pixels(15, 3, 8, 8, high=200)
    weights, share = augmix._weights(5, seeded(2), 3)
    monkeypatch.setattr(augmix, "_chained", lambda *_: chains)
    made = augmix._mixed(images, seeded(2), Config())
    for i in range(5):
        mean = sum(weights[i, k] * chains[5 * k + i] for k in range(3))
        expected = share[i] * images[i] + (1 - share[i]) * mean
        assert (made[i] - expected).abs().max() <= 0.51


def test_chains_have_every_depth_and_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def spy(images: Tensor, kinds: Tensor, levels: Tensor, signs: Tensor) -> Tensor:
        assert levels.min() >= 0.1
        assert levels.max() <= 1
        assert set(signs.tolist()) == {-1.0, 1.0}
        seen.append(kinds)
        return images

    monkeypatch.setattr(augmix, "_changed", spy)
    augmix._chained(pixels(900, 1, 1, 1), seeded(), Config())
    kinds = torch.stack(seen)
    depths = torch.bincount((kinds >= 0).sum(0))
    assert depths[0] == 0
    assert all(240 < depths[depth] < 360 for depth in (1, 2, 3))
    counts = torch.bincount(kinds[kinds >= 0])
    assert len(counts) == len(TONES) + len(MOVES) == 9
    assert counts.min() > 0.7 * counts.float().mean()


def test_every_image_goes_through_the_change_of_its_kind_and_none_where_it_has_none() -> None:
    images = smooth(10, 3, 32, 32)
    kinds, levels = torch.arange(-1, 9), torch.linspace(2, 8, 10)
    signs = torch.tensor([1.0, -1.0]).repeat(5)
    changed = augmix._changed(images, kinds, levels, signs)
    assert torch.equal(changed[0], images[0])
    for i, tone in enumerate(TONES, start=1):
        assert torch.equal(changed[i : i + 1], tone(images[i : i + 1], levels[i : i + 1]))
    for i, move in enumerate(MOVES, start=1 + len(TONES)):
        expected = moved(images[i : i + 1], move, float(levels[i]), float(signs[i]))
        assert torch.equal(changed[i : i + 1], expected)
    assert not any(torch.equal(changed[i], images[i]) for i in range(1, 10))


@settings(deadline=None, max_examples=25)
@given(
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    low=st.integers(0, 250),
    span=st.integers(1, 256),
)
def test_tones_are_those_of_torchvision(
    channels: int, height: int, width: int, low: int, span: int
) -> None:
    images = pixels(3, channels, height, width, low=low, high=min(256, low + span))
    none = torch.zeros(3)
    assert torch.equal(augmix.equalize(images, none), published.equalize(images))
    assert difference(augmix.autocontrast(images, none), published.autocontrast(images)) <= 1
    assert torch.equal(augmix.posterize(images, none), published.posterize(images, bits=4))
    strong = torch.full((3,), 5.0)
    assert torch.equal(augmix.posterize(images, strong), published.posterize(images, bits=2))
    assert torch.equal(augmix.solarize(images, strong), published.solarize(images, threshold=128))


def test_autocontrast_uses_the_whole_range_of_every_channel() -> None:
    stretched = augmix.autocontrast(pixels(20, 3, 9, 9, low=3, high=200), torch.zeros(20))
    assert (stretched.amin((2, 3)) == 0).all()
    assert (stretched.amax((2, 3)) == 255).all()


def test_rotations_and_shears_are_those_of_torchvision_away_from_the_edges() -> None:
    images, inside = smooth(2, 3, 40, 40), (..., slice(8, 32), slice(8, 32))
    settled = {"interpolation": InterpolationMode.BILINEAR}
    rotate, shear_x, shear_y, _, _ = MOVES
    theirs = published.rotate(images, 9, **settled)
    assert difference(moved(images, rotate, 3.3, 1.0)[inside], theirs[inside]) <= 1
    for move, place in ((shear_x, 0), (shear_y, 1)):
        angles = [0.0, 0.0]
        angles[place] = float(torch.rad2deg(torch.atan(torch.tensor(0.06))))
        theirs = published.affine(images, 0.0, [0, 0], 1.0, angles, center=[0.0, 0.0], **settled)
        both = [moved(images, move, 2.0, sign)[inside] for sign in (1.0, -1.0)]
        assert difference(both[0], both[1]) > 1
        assert min(difference(mine, theirs[inside]) for mine in both) <= 1


@pytest.mark.parametrize(("move", "place"), [(MOVES[3], 3), (MOVES[4], 2)])
def test_translations_go_by_whole_pixels_over_black(move: Any, place: int) -> None:
    images = pixels(2, 3, 60, 60, low=1)
    ahead, back = moved(images, move, 2.9, 1.0), moved(images, move, 2.9, -1.0)
    assert torch.equal(ahead.narrow(place, 0, 55), images.narrow(place, 5, 55))
    assert torch.equal(back.narrow(place, 5, 55), images.narrow(place, 0, 55))
    assert not ahead.narrow(place, 55, 5).any()
    assert not back.narrow(place, 0, 5).any()


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_colour_stays_away_from_the_edges_and_black_comes_in_at_them(
    move: Any, sign: float
) -> None:
    changed = moved(torch.full((2, 3, 64, 64), 96, dtype=torch.uint8), move, 2.0, sign)
    assert (changed[..., 16:48, 16:48] == 96).all()
    assert changed.min() < 48


@pytest.mark.gpu
def test_draws_do_not_depend_on_the_device() -> None:
    images = smooth(6, 3, 24, 24)
    here, there = views(images, 8, seeded()), views(images.cuda(), 8, seeded())
    assert there.device.type == "cuda"
    # Equalize and posterize turn the last bit of a crop into several grey levels.
    assert (here.int() - there.cpu().int()).abs().float().mean() < 0.5


@pytest.mark.parametrize(
    ("setting", "value", "right"),
    [
        ("chains", 0, "at least 1"),
        ("depth", 0, "at least 1"),
        ("severity", 0.0, "between 0.1 and 10"),
        ("severity", 11.0, "between 0.1 and 10"),
    ],
)
def test_a_setting_that_cannot_be_drawn_from_is_refused(
    setting: str, value: Any, right: str
) -> None:
    with pytest.raises(DataError, match=f"augmix: {setting} is {value}; it must be {right}"):
        Config(**{setting: value})


def test_a_negative_number_of_views_is_refused() -> None:
    with pytest.raises(DataError, match="augmix: count is -1; ask for 0 or more"):
        views(pixels(1, 3, 4, 4), -1, seeded())
