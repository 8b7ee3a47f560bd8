import math

import pytest
import torch
from torch import Tensor

from generalizeformer.imaging import appearance


def images(channels: int = 3) -> Tensor:
    """Two equal images of noise."""
    one = torch.rand(1, channels, 9, 8, generator=torch.Generator().manual_seed(0))
    return one.repeat(2, 1, 1, 1)


AMOUNTS = torch.tensor([0.0, 0.3])


def only_second_changes(changed: Tensor, original: Tensor) -> bool:
    return bool(torch.equal(changed[0], original[0]) and not changed[1].allclose(original[1]))


@pytest.mark.parametrize(
    "change",
    [
        appearance.brighten,
        appearance.contrast,
        appearance.gamma,
        appearance.saturate,
        appearance.invert,
        appearance.trace,
        lambda x, amounts: appearance.blur(x, 3 * amounts, 1.0),
        lambda x, amounts: appearance.coarsen(x, (amounts > 0).long(), (2,)),
        lambda x, amounts: appearance.tint(x, amounts[:, None].repeat(1, 3), torch.zeros(2, 3)),
        lambda x, amounts: appearance.tint(x, torch.zeros(2, 3), amounts[:, None].repeat(1, 3)),
        lambda x, amounts: appearance.roughen(x, amounts, torch.Generator().manual_seed(0)),
    ],
)
def test_an_amount_of_zero_changes_nothing_and_another_changes_its_image(change) -> None:  # type: ignore[no-untyped-def]
    assert only_second_changes(change(images(), AMOUNTS), images())


def test_contrast_keeps_the_mean_and_scales_the_spread() -> None:
    changed = appearance.contrast(images(), AMOUNTS)
    assert torch.allclose(changed.mean((1, 2, 3)), images().mean((1, 2, 3)))
    assert torch.allclose(changed[1].std(), images()[1].std() * math.exp(0.3))


def test_taking_all_colour_leaves_equal_channels() -> None:
    grey = appearance.saturate(images(), torch.tensor([0.0, -1.0]))
    assert torch.allclose(grey[1, 0], grey[1, 2], atol=1e-6)
    assert not torch.allclose(grey[0, 0], grey[0, 2], atol=1e-6)


def test_inverting_twice_gives_the_image_back() -> None:
    ones = torch.ones(2)
    assert torch.allclose(appearance.invert(images(), ones), 1 - images())
    twice = appearance.invert(appearance.invert(images(), ones), ones)
    assert torch.allclose(twice, images(), atol=1e-6)


def test_a_blurred_point_is_the_gaussian_itself() -> None:
    point = torch.zeros(2, 1, 15, 15)
    point[:, :, 7, 7] = 1
    blurred = appearance.blur(point, torch.tensor([1.0, 2.0]), 2.0)
    assert torch.allclose(blurred.sum((1, 2, 3)), torch.ones(2), atol=1e-2)
    for index, sigma in enumerate((1.0, 2.0)):
        ratio = blurred[index, 0, 7, 9] / blurred[index, 0, 7, 7]
        assert math.isclose(ratio, math.exp(-0.5 * (2 / sigma) ** 2), rel_tol=1e-4)
        assert torch.allclose(blurred[index, 0], blurred[index, 0].T)


def test_a_lower_resolution_keeps_flat_areas_and_loses_fine_stripes() -> None:
    stripes = torch.arange(8).remainder(2).float().expand(3, 1, 8, 8).contiguous()
    coarse = appearance.coarsen(stripes, torch.tensor([0, 1, 2]), (2, 4))
    assert torch.equal(coarse[0], stripes[0])
    assert torch.allclose(coarse[1:], torch.full((2, 1, 8, 8), 0.5))


def test_noise_has_the_deviation_asked_and_differs_between_images() -> None:
    flat = torch.zeros(2, 1, 60, 60)
    noisy = appearance.roughen(flat, torch.tensor([0.1, 0.1]), torch.Generator().manual_seed(0))
    assert torch.allclose(noisy.std(dim=(1, 2, 3)), torch.tensor(0.1), rtol=0.1)
    assert not torch.allclose(noisy[0], noisy[1])


def test_a_traced_image_is_dark_lines_on_white_where_tones_change() -> None:
    step = torch.zeros(2, 3, 8, 8)
    step[:, :, :, 4:] = 0.6
    drawn = appearance.trace(step, torch.ones(2))
    assert (drawn[..., 3:5] == 0).all()
    assert (drawn[..., [0, 1, 2, 5, 6, 7]] == 1).all()
    assert (appearance.trace(torch.full((1, 3, 8, 8), 0.4), torch.ones(1)) == 1).all()
