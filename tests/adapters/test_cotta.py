"""CoTTA: its update rule by hand, when it averages over views, what it restores."""

import copy
import math
from typing import Any

import jaxtyping
import pytest
import torch
from teaching import ALWAYS, NEVER, assert_close, equal_parameters, net, parameters, seeded
from torch import Tensor, nn
from torch.func import functional_call
from torchvision.ops import FrozenBatchNorm2d

from generalizeformer.adapters import cotta
from generalizeformer.adapters._strong_views import strong_view
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import ImageError, SlotError, UserError
from generalizeformer.seeds import derive


def in_batch_mode(backbone: nn.Module, images: Tensor) -> Tensor:
    network = copy.deepcopy(backbone).train()
    return network(images).detach()  # type: ignore[no-any-return]


@pytest.mark.parametrize("restore", [0.0, 0.3, 1.0])
def test_cotta_without_learning_is_batch_statistics(
    restore: float, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = cotta.Config(
        learning_rate=0.0, restore_chance=restore, confidence=NEVER, steps=2, teacher_momentum=0.5
    )
    adapter = cotta.build(source, config)
    for batch in images.split(8):
        assert_close(adapter.step(batch), in_batch_mode(backbone, batch))


def test_cotta_answers_an_uncertain_batch_with_the_mean_over_views(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = cotta.Config(learning_rate=0.0, confidence=ALWAYS, views=3, restore_chance=0.0)
    generator = seeded(derive("cotta", 0))
    card = source.card.preprocessing
    views = [in_batch_mode(backbone, strong_view(images, card, generator)) for _ in range(3)]
    got = cotta.build(source, config).step(images)
    assert_close(got, torch.stack(views).mean(0))
    assert (got - in_batch_mode(backbone, images)).abs().max() > 1e-2


def test_cotta_asks_the_source_model_whether_the_batch_is_uncertain(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    plain = in_batch_mode(backbone, images)
    sureness = plain.softmax(1).amax(1).mean().item()
    for above, confidence in ((True, sureness + 1e-6), (False, sureness - 1e-6)):
        adapter = cotta.CoTTA(source, cotta.Config(confidence=confidence, views=1))
        assert torch.allclose(adapter.predict(images), plain, rtol=0, atol=1e-8) is not above
        with torch.no_grad():  # however sure teacher and student become
            adapter.backbone.classifier.weight.mul_(1000)  # type: ignore[union-attr, operator]
            adapter.student.classifier.weight.mul_(1000)  # type: ignore[union-attr, operator]
        one, other = adapter.predict(images), 1000 * (plain - backbone.classifier.bias)
        assert torch.allclose(one, other + backbone.classifier.bias) is not above


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_cotta_updates_by_hand(
    symmetric: bool, optimizer: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    rate, momentum = 0.01, 0.9
    config = cotta.Config(
        optimizer=optimizer,
        learning_rate=rate,
        symmetric=symmetric,
        teacher_momentum=momentum,
        restore_chance=0.0,
        confidence=ALWAYS,
        views=2,
    )
    adapter = cotta.CoTTA(source, config)
    target = adapter.step(images)
    before = {k: v.requires_grad_() for k, v in parameters(backbone).items()}
    logits = functional_call(copy.deepcopy(backbone).train(), before, (images,))
    p, q = logits.softmax(1), target.softmax(1)
    loss = -(q * p.log()).sum(1).mean()
    if symmetric:
        loss = loss / 2 - (p * q.log()).sum(1).mean() / 2
    gradients = torch.autograd.grad(loss, list(before.values()))
    student, teacher = parameters(adapter.student), parameters(adapter.backbone)
    for (name, value), gradient in zip(before.items(), gradients, strict=True):
        # The first step of each: Adam's moments are the gradient and its square, Nesterov looks ahead.
        step = gradient / (gradient.abs() + 1e-8) if optimizer == "adam" else 1.9 * gradient
        moved = (value - rate * step).detach()
        solid = gradient.abs() > 1e-9  # Adam makes a whole step of a rounding error
        assert_close(student[name][solid], moved[solid], atol=1e-6)
        expected = momentum * value.detach() + (1 - momentum) * student[name]
        assert_close(teacher[name], expected)
        assert not torch.equal(student[name], value)


def test_cotta_learns_nothing_from_a_first_batch_that_the_source_is_sure_of(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    """Student and teacher still agree; only the symmetric loss pulls even then."""
    for symmetric in (False, True):
        config = cotta.Config(
            optimizer="sgd", confidence=NEVER, symmetric=symmetric, restore_chance=0.0
        )
        adapter = cotta.CoTTA(source, config)
        adapter.step(images)
        before, after = (
            torch.cat([v.flatten() for v in parameters(n).values()])
            for n in (backbone, adapter.student)
        )
        assert torch.allclose(before, after, rtol=0, atol=1e-12) is not symmetric


def test_cotta_answers_before_it_learns(source: GeneralizeFormer, images: Tensor) -> None:
    slow, fast = (
        cotta.build(
            source, cotta.Config(learning_rate=rate, views=2, teacher_momentum=0.9, confidence=1.0)
        )
        for rate in (1e-4, 0.1)
    )
    assert torch.equal(slow.step(images[:8]), fast.step(images[:8]))
    assert not torch.allclose(slow.step(images[8:]), fast.step(images[8:]))


def test_cotta_restores_as_many_weights_as_asked_each_by_itself(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    chance = 0.3
    config = cotta.Config(restore_chance=chance, confidence=ALWAYS, views=1, learning_rate=0.1)
    adapter = cotta.CoTTA(source, config)
    adapter.step(images)
    before = parameters(backbone)
    after = parameters(adapter.student)
    same = {name: value == before[name] for name, value in after.items()}
    every = torch.cat([value.flatten() for value in same.values()])
    spread = math.sqrt(chance * (1 - chance) / len(every))
    assert abs(every.double().mean().item() - chance) < 4 * spread
    large = same["blocks.1.0.weight"]
    assert 0 < large.flatten(1).sum(1).min() < large.flatten(1).sum(1).max() < large[0].numel()


def test_cotta_draws_what_is_restored_anew_after_every_batch(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = cotta.Config(restore_chance=0.5, confidence=ALWAYS, views=1, learning_rate=0.1)
    adapter = cotta.CoTTA(source, config)
    original, masks = backbone.get_parameter("blocks.1.0.weight"), []
    for _ in range(2):
        adapter.step(images)
        masks.append(adapter.student.get_parameter("blocks.1.0.weight") == original)
    assert not torch.equal(masks[0], masks[1])


def test_cotta_teaches_before_it_restores(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = cotta.Config(restore_chance=1.0, teacher_momentum=0.5, confidence=ALWAYS, views=1)
    adapter = cotta.CoTTA(source, config)
    adapter.step(images)
    assert equal_parameters(adapter.student, backbone)
    assert not equal_parameters(adapter.backbone, backbone)


def test_cotta_with_a_teacher_that_never_moves_answers_from_the_source(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = cotta.Config(teacher_momentum=1.0, confidence=NEVER, learning_rate=0.1, symmetric=True)
    adapter = cotta.CoTTA(source, config)
    for batch in images.split(8):
        assert_close(adapter.step(batch), in_batch_mode(backbone, batch))
    assert not equal_parameters(adapter.student, backbone)


def test_cotta_with_a_teacher_without_memory_is_its_student(
    source: GeneralizeFormer, images: Tensor
) -> None:
    config = cotta.Config(teacher_momentum=0.0, confidence=ALWAYS, views=1, restore_chance=0.0)
    adapter = cotta.CoTTA(source, config)
    adapter.step(images)
    assert not equal_parameters(adapter.anchor, adapter.student)
    for slow, fast in zip(adapter.backbone.parameters(), adapter.student.parameters(), strict=True):
        assert_close(slow, fast)


def test_cotta_forgets_between_batches_where_asked(
    source: GeneralizeFormer, images: Tensor
) -> None:
    episodic = cotta.build(source, cotta.Config(episodic=True, views=2, teacher_momentum=0.0))
    first = episodic.step(images[:8])
    episodic.step(images[8:])
    assert torch.equal(episodic.step(images[:8]), first)


def test_cotta_takes_as_many_steps_as_asked(source: GeneralizeFormer, images: Tensor) -> None:
    many, few = (
        cotta.CoTTA(source, cotta.Config(steps=steps, confidence=ALWAYS, views=1))
        for steps in (3, 1)
    )
    answers = [few.step(images) for _ in range(3)]
    assert torch.equal(many.step(images), answers[-1])
    assert equal_parameters(many.student, few.student)


def test_cotta_serves_models_without_batch_norm(images: Tensor) -> None:
    model = net(norm=nn.GroupNorm(2, 8))
    adapter = cotta.build(model, cotta.Config(**cotta.GRID[-1], teacher_momentum=0.5))
    assert_close(adapter.step(images), model.backbone.eval()(images).detach())
    assert (adapter.predict(images) - model.backbone(images)).abs().max() > 1e-6


def test_cotta_refuses_frozen_batch_norm() -> None:
    with pytest.raises(SlotError, match=r"^cotta: 1 is a FrozenBatchNorm2d, which cannot use"):
        cotta.build(net(norm=FrozenBatchNorm2d(8)), cotta.Config())


def test_cotta_refuses_one_image_where_a_layer_sees_one_value_per_channel(images: Tensor) -> None:
    adapter = cotta.build(net(nn.BatchNorm1d(8)), cotta.Config(views=2))
    before = adapter.predict(images)
    for call in (adapter.step, adapter.predict):
        with pytest.raises(ImageError, match=r"^cotta: 1 image leaves a BatchNorm .*at least 2"):
            call(images[:1])
    assert torch.equal(adapter.predict(images), before)


def test_an_optimiser_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    with pytest.raises(UserError, match=r"^cotta: optimizer is 'adamw'; give 'adam' or 'sgd'$"):
        cotta.Config(optimizer="adamw")  # type: ignore[arg-type]
