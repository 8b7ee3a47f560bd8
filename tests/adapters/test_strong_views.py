"""Strong views: images of the same kind, changed alike, moved as torchvision moves them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from teaching import assert_close, seeded
from torch import Tensor
from torchvision.transforms import functional as reference

from generalizeformer.adapters import _strong_views
from generalizeformer.adapters._strong_views import strong_view
from generalizeformer.core.preprocessing import Preprocessing

CARDS = (Preprocessing(), Preprocessing(mean=(0.5, 0.1, 0.9), std=(1.0, 0.5, 2.0)))


def pixels_of(images: Tensor, card: Preprocessing) -> Tensor:
    mean, std = (images.new_tensor(part).reshape(-1, 1, 1) for part in (card.mean, card.std))
    return images * std + mean


def standardised(pixels: Tensor, card: Preprocessing) -> Tensor:
    mean, std = (pixels.new_tensor(part).reshape(-1, 1, 1) for part in (card.mean, card.std))
    return (pixels - mean) / std


def test_a_view_does_not_depend_on_how_pixels_were_standardised() -> None:
    pixels = torch.rand(4, 3, 12, 10, generator=seeded()).double()
    views = [
        pixels_of(strong_view(standardised(pixels, card), card, seeded(5)), card) for card in CARDS
    ]
    assert_close(views[0], views[1])
    assert (views[0] - pixels).abs().mean() > 0.05


@given(
    st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.booleans()
)
@settings(max_examples=25, deadline=None)
def test_views_are_images_of_the_same_kind(
    seed: int, count: int, height: int, width: int, coloured: bool
) -> None:
    card = CARDS[1] if coloured else Preprocessing(mean=(0.2,), std=(0.3,))
    images = 3 * torch.randn(count, card.channels, height, width, generator=seeded(seed))
    view = strong_view(images, card, seeded(seed))
    assert view.shape == images.shape
    assert view.dtype == images.dtype
    pixels = pixels_of(view, card)
    assert pixels.min() >= -1e-5
    assert pixels.max() <= 1 + 1e-5


def test_all_images_of_a_view_change_alike_but_for_noise() -> None:
    pixels = torch.rand(1, 3, 16, 16, generator=seeded()).expand(6, 3, 16, 16)
    one, *others = strong_view(pixels, Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3), seeded(1))
    for other in others:
        assert 0 < (one - other).abs().max() < 10 * _strong_views.NOISE


def test_half_of_the_views_are_mirrored_and_all_differ() -> None:
    card = Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3)
    pixels = torch.zeros(1, 3, 16, 16)
    pixels[..., :8] = 1
    generator, mirrored, seen = seeded(), 0, []
    for _ in range(60):
        view = strong_view(pixels, card, generator)
        mirrored += int(view[..., :4].mean() < view[..., -4:].mean())
        seen.append(view)
    assert 15 <= mirrored <= 45
    assert len(torch.unique(torch.cat(seen), dim=0)) == 60


@pytest.mark.parametrize("shape", [(16, 16), (12, 20)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_moving_is_the_references_on_an_image_padded_with_its_edge(
    shape: tuple[int, int], seed: int
) -> None:
    pixels = torch.rand(2, 3, *shape, generator=seeded(9)).double()
    draws = [torch.rand(size, generator=g) for g in [seeded(seed)] for size in ((), (), 2)]
    degrees, scale = 30 * draws[0].item() - 15, 0.9 + 0.2 * draws[1].item()
    x, y = (
        round((2 * d - 1) * side / 8)
        for d, side in zip(draws[2].tolist(), shape[::-1], strict=True)
    )
    padded = reference.pad(pixels, [shape[1] // 2, shape[0] // 2], padding_mode="edge")
    bilinear = reference.InterpolationMode.BILINEAR
    # Turned the other way round: torchvision's angles go clockwise, and either way is as likely.
    moved = reference.affine(padded, -degrees, [x, y], scale, [0.0], interpolation=bilinear)
    expected = reference.center_crop(moved, list(shape))
    assert_close(_strong_views._moved(pixels, seeded(seed)), expected, atol=1e-6)
