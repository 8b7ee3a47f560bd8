import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.io import decode_jpeg, encode_jpeg

from generalizeformer.errors import DataError
from generalizeformer.imaging.corruptions import NAMES, corrupt
from generalizeformer.imaging.corruptions._jpeg import compress
from generalizeformer.imaging.corruptions._moves import places
from generalizeformer.imaging.corruptions._severities import _CIFAR, _IMAGENET, LARGE, constants
from generalizeformer.imaging.corruptions.digital import _jumped
from generalizeformer.imaging.pixels import to_bytes, to_unit

SEVERITIES = range(1, 6)
UNSEEDED = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
BLURS = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")

# Here the published constants trade one effect for another: the reach of glass against its sigma and its rounds,
# the weight of frost against that of the picture, the jumps of the rubber sheet against its drift.
NOT_MONOTONE = ("glass_blur", "frost_synth", "elastic_transform")


def picture(count: int = 1, channels: int = 3, height: int = 96, width: int = 96) -> Tensor:
    """Smooth random pictures in all tones, with a little grain."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, 7, 7, generator=generator)
    smooth = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)
    grain = torch.rand(count, channels, height, width, generator=generator)
    return to_bytes((0.9 * smooth + 0.1 * grain).clamp(0, 1))


def seeds(count: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + count)


def flat(value: int, channels: int = 3, side: int = 96) -> Tensor:
    return torch.full((2, channels, side, side), value, dtype=torch.uint8)


def damage(images: Tensor, name: str, severity: int) -> float:
    changed = corrupt(images, name, severity, seeds(len(images)))
    return float((to_unit(changed) - to_unit(images)).square().mean())


def test_the_names_are_the_published_fifteen_in_their_order() -> None:
    assert len(NAMES) == 15
    assert (NAMES[0], NAMES[3], NAMES[8], NAMES[14]) == (
        "gaussian_noise",
        "defocus_blur",
        "frost_synth",
        "jpeg_compression",
    )


@pytest.mark.parametrize("table", [_IMAGENET, _CIFAR])
def test_every_corruption_has_constants_for_five_severities(
    table: dict[str, tuple[tuple[float, ...], ...]],
) -> None:
    assert tuple(table) == NAMES
    for rows in table.values():
        assert len(rows) == len(SEVERITIES)
        assert len({len(row) for row in rows}) == 1
        assert len(set(rows)) == len(SEVERITIES)


def test_small_images_take_the_constants_of_small_images() -> None:
    assert constants("gaussian_noise", 5, LARGE) == (0.38,)
    assert constants("gaussian_noise", 5, LARGE - 1) == (0.10,)
    wide = torch.full((1, 1, LARGE - 1, 200), 128, dtype=torch.uint8)
    assert to_unit(corrupt(wide, "gaussian_noise", 5, seeds(1))).std() < 0.11


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None)
@given(
    height=st.integers(8, 80),
    width=st.integers(8, 80),
    channels=st.sampled_from([1, 3]),
    severity=st.sampled_from(SEVERITIES),
)
def test_any_image_keeps_its_shape_and_a_batch_is_what_its_images_are_alone(
    name: str, height: int, width: int, channels: int, severity: int
) -> None:
    images, own = picture(3, channels, height, width), torch.tensor([5, 2**40 + 1, 5])
    kept = images.clone()
    changed = corrupt(images, name, severity, own)
    assert changed.shape == images.shape
    assert changed.dtype == torch.uint8
    assert torch.equal(images, kept)
    assert torch.equal(changed, corrupt(images, name, severity, own))
    alone = [corrupt(images[i : i + 1], name, severity, own[i : i + 1]) for i in range(3)]
    assert (changed.int() - torch.cat(alone).int()).abs().max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_a_batch_does_not_matter(name: str) -> None:
    images, own = picture(3), torch.tensor([4, 8, 15])
    changed, turned = corrupt(images, name, 3, own), corrupt(images.flip(0), name, 3, own.flip(0))
    assert (changed.int() - turned.flip(0).int()).abs().max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_random_depends_on_the_seed(name: str) -> None:
    first, second = (corrupt(picture(), name, 3, seeds(1, at)) for at in (1, 2))
    assert torch.equal(first, second) == (name in UNSEEDED)


@pytest.mark.parametrize("side", [32, 96])
@pytest.mark.parametrize("name", NAMES)
def test_every_severity_changes_images_and_a_higher_one_more(name: str, side: int) -> None:
    images = picture(4, 3, side, side)
    damages = [damage(images, name, severity) for severity in SEVERITIES]
    assert min(damages) > 1e-5
    if name != "elastic_transform":
        assert damages[4] > 1.2 * damages[0]
    if name not in NOT_MONOTONE:
        assert all(b > 0.98 * a for a, b in itertools.pairwise(damages)), damages


def test_the_rubber_sheet_first_jumps_and_then_drifts() -> None:
    damages = [damage(picture(4), "elastic_transform", severity) for severity in SEVERITIES]
    assert max(damages[2:]) < min(damages[:2])
    assert damages[2] < damages[3] < damages[4]


@pytest.mark.parametrize("name", NAMES)
def test_no_images_stay_no_images(name: str) -> None:
    empty = picture(0)
    assert corrupt(empty, name, 5, seeds(0)).shape == empty.shape


@pytest.mark.parametrize("name", BLURS)
@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("side", [32, 96])
def test_blurs_keep_a_flat_image(name: str, severity: int, side: int) -> None:
    for value in (0, 77, 255):
        images = flat(value, side=side)
        assert torch.equal(corrupt(images, name, severity, seeds(2)), images)


@pytest.mark.parametrize(("side", "deviation"), [(32, 0.06), (96, 0.12)])
def test_gaussian_noise_has_the_published_deviation(side: int, deviation: float) -> None:
    noise = to_unit(corrupt(flat(128, side=side), "gaussian_noise", 2, seeds(2))) - 128 / 255
    assert noise.std() == pytest.approx(deviation, rel=0.05)
    assert abs(noise.mean()) < deviation / 20


def test_shot_noise_counts_photons() -> None:
    counts = to_unit(corrupt(flat(51), "shot_noise", 2, seeds(2))) * 25  # a fifth of white
    assert counts.mean() == pytest.approx(5, rel=0.02)
    assert counts.var() == pytest.approx(5, rel=0.05)
    assert torch.allclose(counts, counts.round(), atol=0.05)
    assert not corrupt(flat(0), "shot_noise", 5, seeds(2)).any()


def test_impulse_noise_loses_the_published_share_half_to_black_and_half_to_white() -> None:
    changed = corrupt(flat(100), "impulse_noise", 5, seeds(2))
    for lost in (0, 255):
        assert (changed == lost).float().mean() == pytest.approx(0.135, rel=0.05)
    assert set(changed.unique().tolist()) == {0, 100, 255}


def test_an_unfocused_point_is_a_disk() -> None:
    point = torch.zeros(1, 1, 65, 65, dtype=torch.uint8)
    point[..., 32, 32] = 255
    distance = ((torch.arange(65) - 32) ** 2 + (torch.arange(65)[:, None] - 32) ** 2).sqrt()
    spread = corrupt(point, "defocus_blur", 1, seeds(1))[0, 0]
    assert torch.equal(spread > 0, distance <= 3)
    assert set(spread[distance <= 3].tolist()) == {round(255 / 29)}  # pixels of a disk of radius 3


def test_motion_smears_to_one_side_along_one_line() -> None:
    points = torch.zeros(20, 1, 101, 101, dtype=torch.uint8)
    points[..., 50, 50] = 255
    smeared = to_unit(corrupt(points, "motion_blur", 5, seeds(20)))
    assert not smeared[..., 51:].any()  # light comes from the right, so it spreads to the left
    slopes = []
    for image in smeared[:, 0]:
        rows, columns = (axis.float() - 50 for axis in image.nonzero().unbind(1))
        slopes.append(float((rows * columns).sum() / columns.square().sum()))
        assert (rows - slopes[-1] * columns).abs().max() < 1
    assert max(map(abs, slopes)) <= 1.02
    assert max(slopes) - min(slopes) > 1


def test_zooming_keeps_the_centre_and_moves_the_rest_outwards() -> None:
    image = torch.zeros(1, 1, 97, 97, dtype=torch.uint8)
    image[..., 47:50, 47:50] = 255
    image[..., 48, 70:73] = 255
    zoomed = corrupt(image, "zoom_blur", 5, seeds(1))[0, 0]
    assert zoomed[48, 48] == 255
    assert zoomed[48, 71] < 255
    assert zoomed[48, 76].item() > 0
    assert not zoomed[48, 60:70].any()


def test_glass_moves_pixels_no_farther_than_its_rounds_allow() -> None:
    image = torch.zeros(1, 1, 40, 40, dtype=torch.uint8)
    image[..., 20:] = 255
    changed = corrupt(image, "glass_blur", 1, seeds(1))[0, 0]  # one round of two shifts by a pixel
    assert set(changed.unique().tolist()) == {0, 255}
    assert not changed[:, :18].any()
    assert (changed[:, 22:] == 255).all()
    assert changed[:, 18:20].any()


def test_brightness_raises_the_value_and_keeps_hue_and_saturation() -> None:
    grey = corrupt(flat(51), "brightness", 3, seeds(2))
    assert set(grey.unique().tolist()) == {round(51 + 0.3 * 255)}
    assert set(corrupt(flat(0), "brightness", 2, seeds(2)).unique().tolist()) == {51}
    colour = torch.tensor([100, 50, 25], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 96, 96)
    brighter = corrupt(colour, "brightness", 2, seeds(1))[0, :, 0, 0]
    assert brighter.tolist() == [151, round(75.5), round(37.75)]
    assert corrupt(colour, "brightness", 5, seeds(1)).amax() == 228


def test_contrast_shrinks_every_channel_about_its_own_mean() -> None:
    tiny = torch.tensor([[[[0, 100], [100, 200]], [[10, 10], [10, 10]]]], dtype=torch.uint8)
    changed = corrupt(tiny, "contrast", 2, seeds(1))  # half, for images this small
    assert changed.tolist() == [[[[50, 100], [100, 150]], [[10, 10], [10, 10]]]]


def test_large_pixels_are_flat_and_keep_the_mean() -> None:
    images = picture(2, height=96, width=128)
    changed = corrupt(images, "pixelate", 5, seeds(2))  # a quarter of the pixels along a side
    blocks = changed.unflatten(3, (-1, 4)).unflatten(2, (-1, 4))
    assert torch.equal(blocks, blocks[:, :, :, :1, :, :1].expand_as(blocks))
    means = to_bytes(F.avg_pool2d(to_unit(images), 4))
    assert (blocks[:, :, :, 0, :, 0].int() - means.int()).abs().max() <= 1
    assert torch.equal(corrupt(changed, "pixelate", 5, seeds(2)), changed)


def test_fog_keeps_the_brightest_value_within_reach_and_black_black() -> None:
    images = picture(3)
    changed = corrupt(images, "fog", 5, seeds(3))
    assert (changed.amax(dim=(1, 2, 3)) <= images.amax(dim=(1, 2, 3))).all()
    assert not corrupt(flat(0), "fog", 5, seeds(2)).any()
    # At 128 pixels the whole sheet is seen, so that clouds go from none at all to full.
    grey = corrupt(flat(100, side=128), "fog", 3, seeds(2))
    assert grey.amax() == 100
    assert grey.amin() == round(100 * 100 / (100 + 2.5 * 255))


@pytest.mark.parametrize("name", ["snow", "frost_synth"])
def test_snow_and_frost_lie_on_a_black_image(name: str) -> None:
    images = corrupt(flat(0), name, 5, seeds(2)).float()
    assert images.std(dim=(1, 2, 3)).min() > 10


def test_snow_falls_from_both_sides() -> None:
    black = corrupt(flat(0), "snow", 3, seeds(2)).int()
    assert (black - black.flip(2, 3)).abs().max() <= 1
    assert black.amin() == round(0.3 * 0.5 * 255)  # no flake here, only less contrast


def test_elastic_images_hold_only_values_they_had() -> None:
    images = picture(2) // 2 + 60
    for severity in SEVERITIES:
        changed = corrupt(images, "elastic_transform", severity, seeds(2))
        assert changed.amin() >= images.amin()
        assert changed.amax() <= images.amax()
    assert torch.equal(corrupt(flat(9), "elastic_transform", 2, seeds(2)), flat(9))


def test_three_corners_jump_where_they_are_told() -> None:
    # Channels that hold their own x and y show where a value came from.
    images = places(60, 90, torch.zeros(())).permute(2, 0, 1)[None] / 100
    assert torch.allclose(_jumped(images, torch.zeros(1, 3, 2)), images, atol=1e-5)
    jumps = torch.tensor([[[3.0, -4.0], [-2.0, 5.0], [6.0, 1.0]]])
    moved = _jumped(images, jumps)[0] * 100
    corners = torch.tensor([[45.0 + 20, 30 + 20], [45 + 20, 30 - 20], [45 - 20, 30 - 20]])
    for corner, (x, y) in zip(corners, (corners + jumps[0]).long().tolist(), strict=True):
        assert torch.allclose(moved[:, y, x], corner, atol=1e-3)


def test_elastic_lengths_follow_the_side() -> None:
    ramp = torch.linspace(0, 1, 128).expand(1, 1, 128, 128)
    small, large = (
        to_unit(corrupt(to_bytes(image), "elastic_transform", 1, seeds(1)))
        for image in (ramp, F.interpolate(ramp, scale_factor=2, mode="bilinear"))
    )
    assert torch.allclose(small, F.avg_pool2d(large, 2), atol=0.03)


@pytest.mark.parametrize("size", [(96, 96), (65, 83), (31, 33)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [7, 25, 40, 80])
def test_jpeg_loses_what_a_jpeg_file_loses(
    size: tuple[int, int], channels: int, quality: int
) -> None:
    images = picture(1, channels, *size)
    ours = to_bytes(compress(to_unit(images), quality))[0].float()
    theirs = decode_jpeg(encode_jpeg(images[0], quality)).float()
    lost = (theirs - images[0].float()).abs().mean()
    assert (ours - theirs).abs().mean() < 0.2 * lost
    assert (ours - theirs).abs().mean() < 1.5


@pytest.mark.parametrize("quality", [1, 7, 25, 50, 90])
def test_flat_images_come_back_as_from_a_jpeg_file_to_the_bit(quality: int) -> None:
    images = torch.arange(256, dtype=torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 8, 8)
    theirs = torch.stack([decode_jpeg(encode_jpeg(image, quality)) for image in images])
    assert torch.equal(to_bytes(compress(to_unit(images), quality)), theirs)


def test_jpeg_takes_the_published_quality() -> None:
    images = picture()
    assert torch.equal(
        corrupt(images, "jpeg_compression", 4, seeds(1)), to_bytes(compress(to_unit(images), 10))
    )


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(DataError, match="there is no 'frost'; did you mean 'frost_synth'"):
        corrupt(picture(), "frost", 1, seeds(1))
    with pytest.raises(DataError, match="there is no 'qq'; choose one of: gaussian_noise, shot"):
        corrupt(picture(0), "qq", 1, seeds(0))


@pytest.mark.parametrize("severity", [0, 6, -1])
def test_an_unknown_severity_is_refused(severity: int) -> None:
    with pytest.raises(DataError, match=f"severity is {severity}; choose 1, 2, 3, 4 or 5"):
        corrupt(picture(), "fog", severity, seeds(1))


def test_every_image_needs_a_seed() -> None:
    with pytest.raises(DataError, match="got 2 seeds for 1 images; give one seed for each image"):
        corrupt(picture(), "fog", 1, seeds(2))
