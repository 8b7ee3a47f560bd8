"""What is minimised: pseudo labels of confident images, information, and both as SHOT adds them."""

from math import log

import pytest
import torch
from descending import assert_near
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.adapters import shot, shot_im
from generalizeformer.adapters._objectives import confident_cross_entropy, information
from generalizeformer.core.generalizeformer import GeneralizeFormer


def logits_of(seed: int, images: int, classes: int, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, classes, generator=generator).double() * scale


batches = st.builds(
    logits_of, st.integers(0, 99), st.integers(1, 9), st.integers(2, 70), st.floats(0.0, 9.0)
)


@settings(max_examples=25, deadline=None)
@given(batches, st.sampled_from([0.0, 0.5, 0.9]))
def test_pseudo_labels_teach_the_confident_images_only(logits: Tensor, threshold: float) -> None:
    chosen = logits[logits.softmax(1).amax(1) > threshold]
    got = confident_cross_entropy(logits, threshold)
    expected = (
        F.cross_entropy(chosen, chosen.argmax(1)) if len(chosen) else torch.zeros(()).double()
    )
    assert_near(got, expected, 1e-12)


def test_nobody_confident_is_a_loss_and_gradients_of_zero() -> None:
    logits = logits_of(0, 6, 5, 1.0).requires_grad_()
    loss = confident_cross_entropy(logits, 1.0)
    loss.backward()
    assert loss == 0
    assert torch.equal(logits.grad, torch.zeros(6, 5).double())


def test_as_confident_as_the_threshold_is_not_enough() -> None:
    logits = torch.zeros(1, 2).double()
    assert confident_cross_entropy(logits, 0.5) == 0
    assert confident_cross_entropy(logits, 0.49) > 0


@settings(max_examples=25, deadline=None)
@given(batches)
def test_information_is_bounded_by_nothing_and_by_all_classes(logits: Tensor) -> None:
    """A mean has at least the entropy of its parts, and at most that of all classes alike."""
    classes = logits.shape[1]
    assert -log(classes) - 1e-9 <= information(logits) <= classes * 1e-5


def test_information_of_a_single_image_is_nothing() -> None:
    assert_near(information(logits_of(1, 1, 5, 2.0)), torch.zeros(()).double(), 1e-4)


@pytest.mark.parametrize("classes", [2, 7])
def test_information_of_sure_answers_for_every_class_is_all_there_is(classes: int) -> None:
    sure = 1000 * torch.eye(classes).double().repeat(3, 1)
    assert_near(information(sure), torch.tensor(-log(classes)).double(), 1e-3)


@pytest.mark.parametrize("settings", [{"label_weight": 0.0}, {"threshold": 1.0}])
def test_shot_without_pseudo_labels_is_shot_im(
    settings: dict[str, float], source: GeneralizeFormer, images: Tensor
) -> None:
    config = shot.Config(learning_rate=1e-3, **settings)
    one = shot.build(source, config)
    other = shot_im.build(source, shot_im.Config(learning_rate=1e-3))
    full = shot.build(source, shot.Config(learning_rate=1e-3, threshold=0.3, label_weight=1.0))
    for batch in images.split(8):
        assert_near(one.step(batch), other.step(batch), 1e-12)
        full.step(batch)
    assert not torch.allclose(full.predict(images), one.predict(images))
