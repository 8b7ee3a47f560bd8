import pytest
import torch

from generalizeformer.imaging.pixels import to_bytes, to_unit, turning, warp


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def test_every_byte_survives_the_way_there_and_back() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(to_bytes(to_unit(every)), every)
    assert to_unit(every).min() == 0
    assert to_unit(every).max() == 1


def test_what_lies_outside_is_cut_and_the_rest_rounded() -> None:
    values = torch.tensor([-0.5, 1.5, 0.5, 0.6 / 255, 0.4 / 255]).view(1, 1, 1, 5)
    assert to_bytes(values).flatten().tolist() == [0, 255, 128, 1, 0]


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_quarter_turns_are_counter_clockwise(quarters: int) -> None:
    images = noise(2, 3, 7, 7)
    turned = warp(images, turning(torch.full((2,), 90.0 * quarters)), "zeros")
    assert torch.allclose(turned, torch.rot90(images, quarters, (2, 3)), atol=1e-4)


def test_every_image_has_its_own_matrix() -> None:
    images = noise(1, 1, 5, 5).repeat(3, 1, 1, 1)
    turned = warp(images, turning(torch.tensor([0.0, 90.0, -90.0])), "zeros")
    expected = [torch.rot90(images[0], quarters, (1, 2)) for quarters in (0, 1, -1)]
    assert torch.allclose(turned, torch.stack(expected), atol=1e-4)


def test_an_oblong_image_turns_without_shearing() -> None:
    image = torch.zeros(1, 1, 9, 21)
    image[0, 0, 4, 7:14] = 1  # a bar of 7 pixels across the centre
    turned = warp(image, turning(torch.tensor([90.0])), "zeros")
    expected = torch.zeros_like(image)
    expected[0, 0, 1:8, 10] = 1
    assert torch.allclose(turned, expected, atol=1e-4)


def test_what_comes_into_view_is_black_or_the_edge_drawn_out() -> None:
    white = torch.ones(1, 1, 8, 8)
    turn = turning(torch.tensor([45.0]))
    assert warp(white, turn, "zeros")[0, 0, 0, 0] == 0
    assert torch.allclose(warp(white, turn, "border"), white)
