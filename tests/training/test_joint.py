import io
from typing import Any

import pytest
import torch
from torch import nn

from generalizeformer.training import erm, joint, meta
from generalizeformer.training._loop import Metrics
from generalizeformer.training._start import calibrate
from generalizeformer.training.joint import Config, Joint

from .toys import (
    PREPROCESSING,
    fabric,
    grouped_network,
    network,
    recipe,
    same,
    seeded,
    sources,
    state,
    wrapped,
)


def joint_of(backbone: nn.Module) -> Joint:
    data, settings = sources(), recipe()
    config = Config(erm=settings.erm, meta=settings.meta)
    return Joint(wrapped(backbone), data, data, PREPROCESSING, config, fabric())


def test_as_many_images_are_measured_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(joint, "calibrate", lambda *given: seen.append(given[3]))
    data, settings = sources(), recipe()
    config = Config(erm=settings.erm, meta=settings.meta, calibration=2)
    Joint(wrapped(network()), data, data, PREPROCESSING, config, fabric()).validate()
    assert seen == [2]


def nothing(*_: Any) -> Metrics:
    return {"loss": 0.0, "accuracy": 0.0}


def test_each_iteration_leaves_one_domain_to_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    learned, carried = [], []
    minibatch, episode = erm.minibatch, meta.episode

    def spy_minibatch(dataset: Any, *rest: Any) -> Any:
        learned.append(dataset.names)
        return minibatch(dataset, *rest)

    def spy_episode(domain: Any, *rest: Any) -> Any:
        carried.append(domain.name)
        return episode(domain, *rest)

    monkeypatch.setattr(erm, "minibatch", spy_minibatch)
    monkeypatch.setattr(meta, "episode", spy_episode)
    method = joint_of(network())
    for step in range(12):
        method.update(step, seeded(step))
    assert set(carried) == {"a", "b", "c"}
    for names, name in zip(learned, carried, strict=True):
        assert sorted((*names, name)) == ["a", "b", "c"]


def test_both_parts_move() -> None:
    method = joint_of(network())
    before = state(method.model.backbone), state(method.model.generator)
    method.update(0, seeded())
    assert not same(before[0], state(method.model.backbone))
    assert not same(before[1], state(method.model.generator))


def test_the_generators_loss_does_not_reach_the_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    method = joint_of(network())
    monkeypatch.setattr(method.source, "update", nothing)
    before = state(method.model.backbone)
    method.update(0, seeded())
    assert same(before, state(method.model.backbone))
    assert all(value.grad is None for value in method.model.backbone.parameters())


def test_the_backbones_loss_does_not_reach_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    method = joint_of(network())
    monkeypatch.setattr(method.target, "update", nothing)
    before = state(method.model.generator)
    method.update(0, seeded())
    assert same(before, state(method.model.generator))
    assert all(value.grad is None for value in method.model.generator.parameters())


def test_validation_covers_every_domain_after_an_update_on_one() -> None:
    method = joint_of(network())
    fresh = method.validate()
    method.update(0, seeded())
    assert len(method.target.pairs) == 1
    assert (
        fresh.keys() == method.validate().keys() == {"accuracy_1", "accuracy_4", "score", "source"}
    )
    assert len(method.target.pairs) == 3


def test_what_layers_see_of_the_sources_is_measured_again_as_the_backbone_moves() -> None:
    method = joint_of(grouped_network())
    model = method.model
    calibrate(model, method.train, PREPROCESSING)
    first = state(model.reference)
    for step in range(4):
        method.update(step, seeded(step))
    method.validate()
    moved = state(model.reference)
    assert not same(first, moved)
    calibrate(model, method.train, PREPROCESSING)
    assert same(moved, state(model.reference))

    weights = {name: value.clone() for name, value in method.weights().items()}
    method.update(4, seeded(4))
    method.load_weights(weights)
    assert same(moved, state(model.reference))


def test_state_and_weights_bring_everything_back() -> None:
    method, other = joint_of(network()), joint_of(network())
    for step in range(2):
        method.update(step, seeded(step))
    method.validate()  # which the loop does before it stores, and which looks at the sources again
    other.load(torch.load(_stored(method), weights_only=True))
    for one in (method, other):
        torch.manual_seed(2)  # the noise of φ's training
        one.update(2, seeded(2))
    assert same(state(method.model), state(other.model))
    assert same(method.weights(), other.weights())


def _stored(method: Joint) -> io.BytesIO:
    content = io.BytesIO()
    torch.save(method.state(), content)
    content.seek(0)
    return content
