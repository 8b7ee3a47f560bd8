from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.imaging.turning import How, turn

# Computed with scipy 1.17.1: images of RandomState(0).randint(-20, 21, shape) / 8, first 28 x 28, then 9 x 16,
# and scipy.ndimage.rotate(image, degrees, reshape=False) of each, under the names "square 15" and so on.
GOLDEN = Path(__file__).parent / "turning.npz"

BOTH: tuple[How, ...] = ("csd", "clean")
sides = st.integers(1, 9)
degrees = st.floats(-400, 400)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", ["square 15", "square -70", "oblong 30", "oblong 90"])
def test_the_spline_gives_what_scipy_gives(name: str) -> None:
    kind, angle = name.split()
    with np.load(GOLDEN) as golden:
        image, expected = torch.from_numpy(golden[kind]), torch.from_numpy(golden[name])
    torch.testing.assert_close(turn(image[None, None], float(angle), "csd")[0, 0], expected)
    single = turn(image[None, None].float(), float(angle), "csd")[0, 0]
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, expected.float(), atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=25)
@given(height=sides, width=sides, angle=degrees, how=st.sampled_from(BOTH))
def test_a_turn_is_linear_and_treats_every_plane_alike(
    height: int, width: int, angle: float, how: How
) -> None:
    images = noise(3, 2, height, width)
    turned = turn(images, angle, how)
    assert turned.shape == images.shape
    torch.testing.assert_close(
        turn(2 * images[:1] - images[1:2], angle, how), 2 * turned[:1] - turned[1:2]
    )
    torch.testing.assert_close(turn(images[2:, 1:], angle, how), turned[2:, 1:])


@settings(deadline=None, max_examples=25)
@given(height=sides, width=sides, angle=degrees)
def test_the_spline_of_a_flat_image_is_flat_and_zero_outside(
    height: int, width: int, angle: float
) -> None:
    turned = turn(torch.ones(1, 1, height, width, dtype=torch.float64), angle, "csd")
    nearest = turned.round()
    torch.testing.assert_close(turned, nearest)
    assert set(nearest.flatten().tolist()) <= {0.0, 1.0}


@settings(deadline=None, max_examples=25)
@given(side=sides, quarters=st.integers(-5, 5), how=st.sampled_from(BOTH))
def test_quarter_turns_of_squares_and_half_turns_of_all_are_exact(
    side: int, quarters: int, how: How
) -> None:
    square, oblong = noise(2, 1, side, side), noise(2, 1, side, side + 3)
    assert torch.equal(turn(square, 90 * quarters, how), torch.rot90(square, quarters, (2, 3)))
    half = turn(oblong, 180 * quarters, how)
    assert torch.equal(half, oblong if quarters % 2 == 0 else oblong.flip(2, 3))


@pytest.mark.parametrize("how", BOTH)
def test_near_a_quarter_turn_the_answer_is_near_the_exact_one(how: How) -> None:
    """Were exact turns and others to disagree about direction or centre, it would jump here."""
    square = noise(1, 1, 9, 9)
    inner = (..., slice(1, -1), slice(1, -1))  # at the edge, pixels leave the canvas at once
    for quarters in range(4):
        exact = turn(square, 90 * quarters, how)
        assert (turn(square, 90 * quarters + 1e-4, how) - exact)[inner].abs().max() < 1e-3


def test_spline_and_bilinear_turns_go_the_same_way() -> None:
    image = torch.zeros(1, 1, 28, 28)
    image[..., 12:16, 18:26] = 1.0  # to the right of the centre
    spline, bilinear = (turn(image, 45, how) for how in BOTH)
    assert bilinear[..., :14, 14:].sum() > 0.9 * bilinear.sum()  # now up and to the right
    assert (spline - bilinear).abs().mean() < 0.02 < bilinear.mean()


def test_the_spline_overshoots_and_the_bilinear_turn_does_not() -> None:
    image = torch.zeros(1, 1, 12, 12)
    image[..., 4:8, 4:8] = 1.0
    spline, bilinear = (turn(image, 30, how) for how in BOTH)
    assert spline.max() > 1.05
    assert spline.min() < -0.05
    assert 0 <= bilinear.min() <= bilinear.max() <= 1


def test_what_cannot_be_turned_is_refused() -> None:
    with pytest.raises(ValueError, match="how is 'sideways'; choose one of: csd, clean"):
        turn(torch.zeros(1, 1, 4, 4), 10, "sideways")  # type: ignore[arg-type]
    large = torch.zeros(1, 1, 65, 64)
    with pytest.raises(
        ValueError, match="images are 65 x 64; the spline takes at most 4096 pixels"
    ):
        turn(large, 10, "csd")
    assert turn(large, 10, "clean").shape == large.shape
