"""Methods with a teacher and a student: what CoTTA and RoTTA have in common, and their settings."""

import math
from typing import Any

import pytest
import torch
from teaching import ALWAYS, assert_close, equal_parameters, net, parameters
from torch import Tensor, nn

from generalizeformer.adapters import cotta, rotta
from generalizeformer.adapters._teacher import soft_cross_entropy
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, UserError

LEARNING = {
    "cotta": cotta.Config(views=2, confidence=ALWAYS, learning_rate=0.01),
    "cotta-imagenet": cotta.Config(**cotta.GRID[-1], views=2),
    "rotta": rotta.Config(update_every=6, memory_size=10, learning_rate=0.01),
}

every_learner = pytest.mark.parametrize("config", LEARNING.values(), ids=LEARNING)


def build(source: GeneralizeFormer, config: Any) -> Any:
    method = cotta if isinstance(config, cotta.Config) else rotta
    return method.build(source, config)


@every_learner
def test_replay_after_reset_is_bit_identical_where_the_method_does_learn(
    config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(source, config)
    before = adapter.predict(images)
    first = torch.cat([adapter.step(batch) for batch in images.split(8)])
    assert not torch.allclose(adapter.predict(images), before, atol=1e-9)
    with torch.inference_mode():
        adapter.reset()
        assert torch.equal(adapter.predict(images), before)
        again = torch.cat([adapter.step(batch) for batch in images.clone().split(8)])
    assert torch.equal(again, first)


@every_learner
def test_predict_answers_as_step_would_and_changes_nothing(
    config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    asked, left_alone = build(source, config), build(source, config)
    for batch in images.split(8):
        asked.predict(images.flip(0))
        expected = asked.predict(batch)
        assert torch.equal(asked.step(batch), expected)
        assert torch.equal(left_alone.step(batch), expected)


@every_learner
def test_the_seed_is_all_that_chance_depends_on(
    config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    kind = type(config)
    answers = []
    for seed in (0, 0, 1):
        torch.rand(1)  # the global generator moves on, to no effect
        adapter = build(source, kind(**{**config.__dict__, "seed": seed}))
        adapter.step(images)
        answers.append(torch.cat([v.flatten() for v in parameters(adapter.student).values()]))
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


@every_learner
def test_dropout_stays_off(config: Any, images: Tensor) -> None:
    plain, dropping = build(net(nn.Identity()), config), build(net(nn.Dropout(0.5)), config)
    for batch in images.split(8):
        assert torch.equal(plain.step(batch), dropping.step(batch))
    assert equal_parameters(plain.student, dropping.student)


@every_learner
def test_the_teacher_gets_no_gradients(
    config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = build(source, config)
    adapter.step(images)
    assert not any(v.requires_grad or v.grad is not None for v in adapter.backbone.parameters())
    assert any(v.grad is not None and v.grad.any() for v in adapter.student.parameters())


@every_learner
def test_gradients_of_earlier_updates_do_not_linger(
    config: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    one, other = build(source, config), build(source, config)
    for adapter in (one, other):
        adapter.step(images[:12])
    for value in one.student.parameters():
        value.grad = torch.full_like(value, 1e6) if value.requires_grad else None
    for adapter in (one, other):
        adapter.step(images[12:])
    assert equal_parameters(one.student, other.student)


def test_soft_cross_entropy_by_hand() -> None:
    logits, target = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[math.log(4), 0.0]])
    expected = -(0.8 * math.log(0.25) + 0.2 * math.log(0.75))
    assert_close(soft_cross_entropy(logits, target), torch.tensor([expected]), atol=1e-6)


@every_learner
def test_images_that_the_card_does_not_describe_are_refused(config: Any) -> None:
    torch.manual_seed(0)
    images = torch.randn(6, 1, 8, 8).double()
    adapter = build(net(channels=1), config)
    name = adapter.name
    message = (
        rf"^{name}: images have 1 channels, but the model's card gives mean and std for 3; build"
    )
    for call in (adapter.step, adapter.predict):
        with pytest.raises(ImageError, match=message):
            call(images)
    described = net(channels=1)
    card = Card(preprocessing=Preprocessing(mean=(0.5,), std=(0.5,)))
    adapter = build(GeneralizeFormer(described.backbone, described.config, card), config)
    assert adapter.step(images).isfinite().all()


def test_images_of_lower_precision_are_served(images: Tensor) -> None:
    model = GeneralizeFormer(
        net().backbone.bfloat16(), Config(selection=Selection(kinds=("classifier",)))
    )
    for config in LEARNING.values():
        logits = build(model, config).step(images.bfloat16())
        assert logits.dtype == torch.bfloat16
        assert logits.isfinite().all()


# Settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cotta.Config(learning_rate=-1.0), "cotta: learning_rate is -1.0; give a number"),
        (lambda: cotta.Config(teacher_momentum=1.5), "cotta: teacher_momentum is 1.5; .* 0 to 1$"),
        (lambda: cotta.Config(restore_chance=-0.1), "cotta: restore_chance is -0.1; give a number"),
        (lambda: cotta.Config(confidence=math.nan), "cotta: confidence is nan; give a number from"),
        (lambda: cotta.Config(views=0), "cotta: views is 0; give at least 1$"),
        (lambda: cotta.Config(steps=0), "cotta: steps is 0; give at least 1$"),
        (
            lambda: rotta.Config(learning_rate=math.inf),
            "rotta: learning_rate is inf; .* at least 0",
        ),
        (lambda: rotta.Config(age_weight=-1.0), "rotta: age_weight is -1.0; give a number of at"),
        (lambda: rotta.Config(uncertainty_weight=math.nan), "rotta: uncertainty_weight is nan; "),
        (lambda: rotta.Config(teacher_rate=2.0), "rotta: teacher_rate is 2.0; .* from 0 to 1$"),
        (lambda: rotta.Config(statistics_rate=-0.5), "rotta: statistics_rate is -0.5; give"),
        (lambda: rotta.Config(memory_size=0), "rotta: memory_size is 0; give at least 1$"),
        (lambda: rotta.Config(update_every=0), "rotta: update_every is 0; give at least 1$"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        make()


def test_defaults_are_the_published_ones() -> None:
    first, third = cotta.Config(), cotta.Config(**cotta.GRID[2])
    assert (first.optimizer, first.learning_rate, first.symmetric) == ("adam", 1e-3, False)
    assert (first.teacher_momentum, first.restore_chance, first.confidence) == (0.999, 0.01, 0.92)
    assert (first.views, first.steps) == (32, 1)
    assert (third.optimizer, third.learning_rate, third.symmetric) == ("sgd", 0.01, True)
    assert (third.teacher_momentum, third.restore_chance, third.confidence) == (0.999, 0.001, 0.1)
    second = rotta.Config()
    assert (second.learning_rate, second.memory_size, second.update_every) == (1e-3, 64, 64)
    assert (second.teacher_rate, second.statistics_rate) == (0.001, 0.05)
    assert (second.age_weight, second.uncertainty_weight) == (1.0, 1.0)
