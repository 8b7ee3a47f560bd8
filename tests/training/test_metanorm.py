"""MetaNorm's training: it starts as the source model, learns, validates as it is used, and can be resumed."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from generalizeformer.adapters import metanorm as adapter
from generalizeformer.data.episodes import minibatch
from generalizeformer.errors import SlotError, UserError
from generalizeformer.imaging.augmentation import recipe as augmentation_recipe
from generalizeformer.training import metanorm
from generalizeformer.training._scoring import accuracy
from generalizeformer.training.metanorm import Training

from .toys import (
    PREPROCESSING,
    fabric,
    grouped_network,
    network,
    same,
    seeded,
    sources,
    state,
    wrapped,
)


def training_of(domains: int = 3, **settings: Any) -> Training:
    data = sources(domains)
    config = metanorm.Config(**({"steps": 30, "per_domain": 8, "learning_rate": 1e-2} | settings))
    return metanorm.build(wrapped(network()), data, data, PREPROCESSING, config, fabric())


def test_it_begins_as_the_source_model() -> None:
    backbone, data = network(), sources()
    plain = [
        accuracy(lambda x, _: backbone.eval()(x), d, PREPROCESSING, 1, torch.device("cpu"))
        for d in data.domains
    ]
    assert training_of().validate()["score"] == pytest.approx(sum(plain) / 3)


def test_it_learns_to_answer_by_inferred_statistics() -> None:
    method = training_of(steps=80)
    before = method.validate()["score"]
    first = method.update(0, seeded(0))
    for step in range(1, 80):
        last = method.update(step, seeded(step))
    assert last["inferred"] < first["inferred"] / 2
    assert method.validate()["score"] > before + 20


def test_the_divergence_draws_inferred_statistics_to_their_domain_s() -> None:
    ends = []
    for weight in (0.0, 30.0):
        method = training_of(divergence=weight, steps=50)
        for step in range(50):
            metrics = method.update(step, seeded(step))
        ends.append(metrics["divergence"])
    assert ends[1] < ends[0] / 2


def test_the_loss_is_that_of_the_meta_target_and_of_the_others() -> None:
    method, twin = training_of(divergence=0.5), training_of().network.train()
    got = method.update(0, seeded(3))
    generator = seeded(3)
    target = int(torch.randint(3, (1,), generator=generator))
    drawn = minibatch(sources(), 8, generator)
    mine, images = drawn.domains == target, PREPROCESSING(drawn.images)
    usual = F.cross_entropy(twin.usual(images[~mine]), drawn.labels[~mine])
    logits, divergence = twin.compared(images[mine])
    inferred = F.cross_entropy(logits, drawn.labels[mine])
    assert got["inferred"] == pytest.approx(inferred.item())
    assert got["loss"] == pytest.approx((usual + inferred + 0.5 * divergence).item())


def test_everything_learns_and_the_lent_backbone_does_not() -> None:
    model = wrapped(network())
    before = state(model)
    data = sources()
    config = metanorm.Config(steps=3, per_domain=8, learning_rate=1e-2)
    method = metanorm.build(model, data, data, PREPROCESSING, config, fabric())
    start = state(method.network)
    for step in range(3):
        method.update(step, seeded(step))
    end = method.weights()
    assert not [name for name, value in start.items() if torch.equal(value, end[name])]
    assert same(before, state(model))


def test_what_is_kept_fills_the_adapter_and_scores_as_validated() -> None:
    method, model = training_of(), wrapped(network())
    for step in range(10):
        method.update(step, seeded(step))
    score = method.validate()["score"]
    model.companions = {"metanorm": method.weights()}
    built = adapter.build(model, adapter.Config())
    scores = [
        accuracy(built.predict_groups, domain, PREPROCESSING, 5, torch.device("cpu"))
        for domain in sources().domains
    ]
    assert score == pytest.approx(sum(scores) / 3)


def test_three_steps_saved_and_three_more_are_six() -> None:
    whole, first, second = (training_of() for _ in range(3))
    for step in range(6):
        whole.update(step, seeded(step))
    for step in range(3):
        first.update(step, seeded(step))
    first.validate()
    second.load(first.state())
    for step in range(3, 6):
        second.update(step, seeded(step))
    assert same(whole.weights(), second.weights())


def test_one_domain_plays_both_parts() -> None:
    method = training_of(domains=1)
    assert method.update(0, seeded())["loss"] > 0


def test_augmentation_comes_from_the_step_s_own_draws() -> None:
    chosen = augmentation_recipe("authors")
    losses = {training_of(augmentation=chosen).update(0, seeded(s))["loss"] for s in (1, 1, 2)}
    assert len(losses) == 2
    assert training_of().update(0, seeded(1))["loss"] not in losses


def test_a_backbone_without_batch_norm_is_refused() -> None:
    model = wrapped(grouped_network())
    with pytest.raises(SlotError, match="metanorm: Sequential has no BatchNorm layer"):
        metanorm.build(model, sources(), sources(), PREPROCESSING, metanorm.Config(), fabric())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("per_domain", 0),
        ("every", 0),
        ("learning_rate", 0.0),
        ("divergence", -1.0),
        ("divergence", float("nan")),
        ("weight_decay", -1.0),
        ("weight_decay", float("nan")),
        ("weight_decay", float("inf")),
    ],
)
def test_a_setting_that_cannot_be_run_is_refused(setting: str, value: float) -> None:
    with pytest.raises(UserError, match=f"metanorm: {setting} is {value}; it must be"):
        metanorm.Config(**{setting: value})
