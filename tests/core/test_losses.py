import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from generalizeformer.core.losses import (
    LOSSES,
    entropy,
    marginal_entropy,
    per_image_entropy,
    pseudo_label,
)

NAMES = sorted(LOSSES)


def logits(views: int, images: int, classes: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(views, images, classes, generator=generator, dtype=torch.float64)


def gradient(loss, values: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    values = values.clone().requires_grad_()
    return torch.autograd.grad(loss(values).sum(), values)[0]


SHAPES = given(
    views=st.integers(1, 4),
    images=st.integers(1, 4),
    classes=st.integers(1, 6),
    seed=st.integers(0, 99),
)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@SHAPES
def test_there_is_one_value_per_image_between_zero_and_log_k(
    name: str, views: int, images: int, classes: int, seed: int
) -> None:
    values = LOSSES[name](logits(views, images, classes, seed))
    assert values.shape == (images,)
    assert (values >= -1e-12).all()
    assert (values <= math.log(classes) + 1e-12).all()


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@SHAPES
def test_adding_a_constant_to_the_logits_of_a_view_changes_nothing(
    name: str, views: int, images: int, classes: int, seed: int
) -> None:
    values = logits(views, images, classes, seed)
    shifted = values + 7 * logits(views, images, 1, seed + 1)
    torch.testing.assert_close(LOSSES[name](shifted), LOSSES[name](values), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_value_of_an_image_does_not_depend_on_other_images(name: str) -> None:
    values = logits(3, 4, 5)
    alone = torch.cat([LOSSES[name](values[:, i : i + 1]) for i in range(4)])
    torch.testing.assert_close(LOSSES[name](values), alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["entropy", "memo"])
def test_uniform_predictions_have_the_most_entropy_and_no_pull(name: str) -> None:
    uniform = torch.full((2, 3, 5), 0.7, dtype=torch.float64)
    assert LOSSES[name](uniform).tolist() == pytest.approx([math.log(5)] * 3)
    assert gradient(LOSSES[name], uniform).abs().max() < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_certain_predictions_have_no_loss_and_no_pull(name: str) -> None:
    certain = torch.zeros(2, 1, 4, dtype=torch.float64)
    certain[..., 2] = 80
    assert LOSSES[name](certain).item() < 1e-12
    assert gradient(LOSSES[name], certain).abs().max() < 1e-12


def test_the_gradient_of_the_entropy_is_its_closed_form() -> None:
    values = logits(1, 4, 5)
    p = values.softmax(-1)
    expected = -p * (p.log() + entropy(values)[None, :, None])
    torch.testing.assert_close(gradient(entropy, values), expected, rtol=0, atol=1e-12)


def test_the_entropy_of_several_views_is_their_mean() -> None:
    values = logits(3, 4, 5)
    each = torch.stack([per_image_entropy(view) for view in values])
    torch.testing.assert_close(entropy(values), each.mean(0))


def test_the_pseudo_label_loss_is_minus_log_of_the_largest_probability() -> None:
    values = logits(1, 6, 5)
    expected = -values[0].softmax(-1).amax(-1).log()
    torch.testing.assert_close(pseudo_label(values), expected, rtol=0, atol=1e-12)


def test_the_gradient_of_the_pseudo_label_loss_is_p_minus_one_hot() -> None:
    values = logits(1, 6, 5)
    hot = torch.nn.functional.one_hot(values.argmax(-1), 5)
    expected = values.softmax(-1) - hot
    torch.testing.assert_close(gradient(pseudo_label, values), expected, rtol=0, atol=1e-12)


def test_with_two_classes_pseudo_labels_and_entropy_pull_the_same_way() -> None:
    values = logits(1, 20, 2)
    pulls = gradient(pseudo_label, values) * gradient(entropy, values)
    assert (pulls > 0).all()


@settings(deadline=None, max_examples=15)
@SHAPES
def test_memo_with_identical_views_is_the_entropy(
    views: int, images: int, classes: int, seed: int
) -> None:
    one = logits(1, images, classes, seed)
    same = one.expand(views, -1, -1)
    torch.testing.assert_close(marginal_entropy(same), entropy(one), rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=15)
@SHAPES
def test_memo_is_at_least_the_mean_entropy_of_the_views(
    views: int, images: int, classes: int, seed: int
) -> None:
    values = logits(views, images, classes, seed)
    assert (marginal_entropy(values) >= entropy(values) - 1e-10).all()


def test_memo_is_more_than_the_mean_entropy_where_views_disagree() -> None:
    values = logits(4, 3, 5)
    assert (marginal_entropy(values) > entropy(values) + 0.01).all()


def test_memo_does_not_care_about_the_order_of_views() -> None:
    values = logits(4, 3, 5)
    shuffled = values[[2, 0, 3, 1]]
    torch.testing.assert_close(marginal_entropy(shuffled), marginal_entropy(values))


def test_the_gradient_of_memo_is_its_closed_form() -> None:
    values = logits(3, 2, 5)
    p = values.softmax(-1)
    u = -(p.mean(0).log() + 1)
    expected = p * (u - (p * u).sum(-1, keepdim=True)) / 3
    torch.testing.assert_close(gradient(marginal_entropy, values), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits_give_finite_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    big = torch.finfo(dtype).max / 4
    values = torch.tensor([[[big, -big, 0.0], [1e4, 0.0, -1e4]]] * 2, dtype=dtype)
    values[1, 1] = values[1, 1].flip(0)
    assert LOSSES[name](values).isfinite().all()
    assert gradient(LOSSES[name], values).isfinite().all()


def test_memo_of_a_class_that_no_view_can_be_is_that_of_the_other_classes() -> None:
    values = logits(3, 2, 4)
    values[..., 1] = -torch.inf
    expected = marginal_entropy(values[..., [0, 2, 3]])
    torch.testing.assert_close(marginal_entropy(values), expected, rtol=0, atol=1e-12)
