from typing import Any

import pytest
import torch

from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.errors import ImageError, UserError

GREY = Preprocessing(size=8, mean=(0.25,), std=(0.5,))


def test_pixels_are_brought_to_the_unit_range_and_standardised() -> None:
    pixels = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1).expand(2, 1, 8, 8)
    images = GREY(pixels)
    assert images.dtype == torch.float32
    assert images[0].unique().tolist() == [-0.5]
    assert images[1].unique().tolist() == [1.5]


def test_pixels_of_the_right_size_are_not_resampled() -> None:
    pixels = torch.randint(256, (2, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(GREY(pixels) * 0.5 + 0.25, pixels.float() / 255)


@pytest.mark.parametrize("shape", [(5, 9), (8, 16), (30, 30)])
def test_every_size_is_brought_to_that_of_the_model(shape: tuple[int, int]) -> None:
    pixels = torch.full((2, 1, *shape), 51, dtype=torch.uint8)
    images = GREY(pixels)
    assert images.shape == (2, 1, 8, 8)
    torch.testing.assert_close(images, torch.full_like(images, (0.2 - 0.25) / 0.5))


def test_the_default_is_that_of_imagenet() -> None:
    assert Preprocessing().size == 224
    assert Preprocessing().channels == 3


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("pixels", "text"),
    [
        (torch.zeros(2, 1, 8, 8), "got torch.float32"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"\(2, 3, 8, 8\); give uint8 of .*\(N, 1, H"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), r"\(1, 8, 8\)"),
    ],
)
def test_other_pixels_are_refused(pixels: torch.Tensor, text: str) -> None:
    with pytest.raises(ImageError, match=text):
        GREY(pixels)


@pytest.mark.parametrize(
    "settings",
    [{"mean": (0.5,)}, {"mean": (), "std": ()}, {"mean": (0.5,), "std": (0.0,)}, {"size": 0}],
)
def test_numbers_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="one number per channel, std above 0, size at least 1"):
        Preprocessing(**settings)
