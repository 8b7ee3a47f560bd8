import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.core.views import views

from .nets import images


def test_the_first_view_is_the_image_itself() -> None:
    x = images(3)
    assert torch.equal(views(x, 4)[0], x)


def test_the_other_views_are_other_pictures() -> None:
    made = views(images(2), 6)
    for a in range(6):
        for b in range(a):
            assert (made[a] - made[b]).abs().amax() > 0.1


def test_the_same_images_give_the_same_views_whatever_was_drawn_before() -> None:
    x = images(3)
    first = views(x, 4)
    torch.manual_seed(99)
    torch.randn(7)
    assert torch.equal(views(x, 4), first)


def test_making_views_draws_nothing_from_the_global_generator() -> None:
    torch.manual_seed(5)
    views(images(3), 4)
    drawn = torch.randn(3)
    torch.manual_seed(5)
    assert torch.equal(torch.randn(3), drawn)


def test_another_seed_gives_other_views() -> None:
    x = images(3)
    assert (views(x, 2, seed=0)[1] - views(x, 2, seed=1)[1]).abs().amax() > 0.1


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 50))
def test_the_views_of_an_image_do_not_depend_on_its_batch(
    mates: int, count: int, seed: int
) -> None:
    x = images(1 + mates, 9, seed=seed)
    alone = views(x[:1], count)
    torch.testing.assert_close(views(x, count)[:, :1], alone, rtol=0, atol=1e-10)


def test_asking_for_fewer_views_gives_the_first_ones() -> None:
    x = images(2)
    assert torch.equal(views(x, 5)[:3], views(x, 3))


def test_views_take_no_pixels_from_outside_the_image() -> None:
    """Border padding: a constant image stays constant, in whatever units it comes."""
    x = torch.full((1, 3, 12, 10), -2.5, dtype=torch.float64)
    torch.testing.assert_close(views(x, 8), x.expand(8, -1, -1, -1, -1), rtol=0, atol=1e-12)
