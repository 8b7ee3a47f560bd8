"""Single-sample generalization's training: context centres, losses, validation as at test time, resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.adapters import single_sample as adapter
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.errors import UserError
from generalizeformer.imaging.augmentation import recipe as augmentation_recipe
from generalizeformer.training import single_sample
from generalizeformer.training._class_context import ClassContext
from generalizeformer.training._run import train_recipe
from generalizeformer.training._scoring import accuracy
from generalizeformer.training.single_sample import Training

from .toys import (
    CARD,
    PREPROCESSING,
    fabric,
    network,
    recipe,
    same,
    seeded,
    sources,
    state,
    wrapped,
)

QUICK: dict[str, Any] = {"steps": 40, "images": 12, "context": 3, "draws": 4, "learning_rate": 1e-2}


def training_of(data: DomainDataset | None = None, **settings: Any) -> Training:
    data = data or sources()
    config = single_sample.Config(**(QUICK | settings))
    return single_sample.build(wrapped(network()), data, data, PREPROCESSING, config, fabric())


def lacking() -> DomainDataset:
    """The first domain has no image of class 1; nobody has one of class 3."""
    data = sources()
    first = data.domains[0]
    kept = first.take((first.labels != 1).nonzero().flatten())
    return DomainDataset("lacking", ("0", "1", "2", "3"), (kept, *data.domains[1:]))


# Class centres


def test_centres_are_means_of_each_class_of_each_domain() -> None:
    context = ClassContext(sources())
    places, cells = context.spread(100)
    images, labels = sources().pick(places)
    assert torch.equal(labels, cells % 3)
    assert torch.equal(places[:, 0], cells // 3)
    assert len(places) == sum(len(domain) for domain in sources().domains)
    got = context.centres(images.double().flatten(1), cells)
    for number, domain in enumerate(sources().domains):
        for label in range(3):
            mean = domain.images[domain.labels == label].double().flatten(1).mean(0)
            torch.testing.assert_close(got[number, label], mean)


def test_the_order_of_context_images_does_not_matter() -> None:
    context, features = ClassContext(sources()), torch.randn(27, 4).double()
    cells = context.draw(3, seeded())[1]
    order = torch.randperm(27)
    one, other = context.centres(features, cells), context.centres(features[order], cells[order])
    torch.testing.assert_close(one, other)


def test_as_many_context_images_of_each_class_and_domain_as_asked_for() -> None:
    context = ClassContext(sources())
    places, cells = context.draw(5, seeded())
    assert torch.equal(cells.bincount(), torch.full((9,), 5))
    assert torch.equal(sources().pick(places)[1], cells % 3)
    assert not torch.equal(places, context.draw(5, seeded(1))[0])
    assert torch.equal(context.spread(2)[1].bincount(), torch.full((9,), 2))


def test_a_class_that_a_domain_lacks_has_its_centre_from_the_others() -> None:
    context = ClassContext(lacking())
    places, cells = context.draw(4, seeded())
    features = torch.randn(len(places), 6).double()
    got = context.centres(features, cells)
    torch.testing.assert_close(got[0, 1], (got[1, 1] + got[2, 1]) / 2)
    assert not got[:, 3].any()
    assert training_of(lacking_three()).update(0, seeded())["loss"] > 0


def lacking_three() -> DomainDataset:
    data = lacking()
    return DomainDataset("lacking", ("0", "1", "2"), data.domains)


# Learning


def test_it_learns_to_write_classifiers() -> None:
    method = training_of(steps=300, learning_rate=3e-2, backbone_share=1.0)
    first = method.update(0, seeded(0))
    for step in range(1, 300):
        last = method.update(step, seeded(step))
    assert last["written"] < first["written"] / 2
    assert last["expected"] < first["expected"] / 2
    assert method.validate()["score"] > 80


def test_the_loss_weighs_its_parts() -> None:
    got = training_of(prior=0.5, divergence=0.01).update(0, seeded(3))
    assert got["divergence"] > 0
    parts = got["written"] + 0.5 * got["expected"] + 0.01 * got["divergence"]
    assert got["loss"] == pytest.approx(parts, rel=1e-5)


def test_the_parts_are_what_the_network_s_distributions_say() -> None:
    method = training_of()
    net = method.network.eval()
    images, labels = method._batch(1, seeded(2))
    centres = torch.randn(3, 3, 6)
    got = method._losses(images, labels, centres, 1, seeded(4))

    noise = seeded(4)
    known = net.known((centres[0] + centres[2]) / 2, 4, noise)
    features, descriptors = net.observe(images)
    written, expected = net.written(descriptors, known), net.expected(centres[1])
    own = torch.einsum("sikf,if->sik", written.sample(4, noise), features)
    given = torch.einsum("skf,if->sik", expected.sample(4, noise), features)
    losses = [
        sum(F.cross_entropy(logits, labels) for logits in drawn) / 4 for drawn in (own, given)
    ]
    normal = [
        torch.distributions.Normal(one.mean, (one.variance + 1e-6).sqrt())
        for one in (written, expected)
    ]
    divergence = torch.distributions.kl_divergence(*normal).sum()
    for name, value in zip(
        ("written", "expected", "divergence"), (*losses, divergence), strict=True
    ):
        torch.testing.assert_close(got[name], value)


def test_gradients_flow_through_the_context() -> None:
    method = training_of()
    centres = torch.randn(3, 3, 6, requires_grad=True)
    losses = method._losses(*method._batch(0, seeded()), centres, 0, seeded())
    (losses["written"] + losses["expected"]).backward()
    assert centres.grad is not None
    assert all(centres.grad[number].any() for number in range(3))


def test_the_backbone_learns_at_a_share_of_the_rate_and_both_drop() -> None:
    method = training_of(steps=10, drop_at=0.6, backbone_share=0.5)
    for step, factor in ((0, 1.0), (5, 1.0), (6, 0.1), (9, 0.1)):
        method.update(step, seeded(step))
        rates = [group["lr"] for group in method.optimizer.param_groups]
        assert rates == pytest.approx([0.5e-2 * factor, 1e-2 * factor])
    counts = [len(group["params"]) for group in method.optimizer.param_groups]
    assert counts[0] == len(list(network().parameters()))
    assert sum(counts) == len(list(method.network.parameters()))


def test_the_lent_backbone_is_left_alone_and_its_head_is_not_taught() -> None:
    model, data = wrapped(network()), sources()
    before = state(model)
    config = single_sample.Config(**QUICK)
    method = single_sample.build(model, data, data, PREPROCESSING, config, fabric())
    start = state(method.network)
    method.update(0, seeded())
    method.validate()
    end = method.weights()
    unmoved = {name for name, value in start.items() if torch.equal(value, end[name])}
    assert unmoved == {"backbone.classifier.weight", "backbone.classifier.bias"}
    assert same(before, state(model))


def test_one_domain_plays_both_parts() -> None:
    assert training_of(sources(domains=1)).update(0, seeded())["loss"] > 0


def test_augmentation_comes_from_the_step_s_own_draws() -> None:
    chosen = augmentation_recipe("authors")
    losses = {training_of(augmentation=chosen).update(0, seeded(s))["loss"] for s in (1, 1, 2)}
    assert len(losses) == 2
    assert training_of().update(0, seeded(1))["loss"] not in losses


# What is kept


def test_validation_renews_the_centres_and_nothing_else() -> None:
    method = training_of()
    method.update(0, seeded())
    before = state(method.network)
    method.validate()
    after = method.weights()
    assert {n for n in before if not torch.equal(before[n], after[n])} == {"centres"}
    centres = torch.stack([class_means(method, domain) for domain in sources().domains]).mean(0)
    torch.testing.assert_close(after["centres"], centres)


def class_means(method: Training, domain: Domain) -> Tensor:
    with torch.no_grad():
        features, _ = method.network.observe(PREPROCESSING(domain.images))
    return torch.stack([features[domain.labels == label].mean(0) for label in range(3)])


def test_what_is_kept_fills_the_adapter_and_scores_as_validated() -> None:
    method, model = training_of(), wrapped(network())
    for step in range(10):
        method.update(step, seeded(step))
    score = method.validate()["score"]
    model.companions = {"single_sample": method.weights()}
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
    whole.validate()
    second.validate()
    assert same(whole.weights(), second.weights())


def test_a_model_trained_for_both_methods_is_saved_and_answers(tmp_path: Path) -> None:
    also = {"single_sample": QUICK | {"steps": 2}, "metanorm": {"steps": 2, "per_domain": 4}}
    chosen = recipe(episodes="looks", also=also)
    model = train_recipe(network, sources(), chosen, CARD, tmp_path, fabric())
    read = GeneralizeFormer.from_pretrained(tmp_path, backbone=network())
    images = PREPROCESSING(sources().domains[0].images[:4])
    for name in also:
        assert same(read.companions[name], model.companions[name])
    config = adapter.Config()
    answers = [adapter.build(one, config).predict(images) for one in (model, read)]
    assert torch.equal(*answers)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("images", 0),
        ("context", 0),
        ("draws", 0),
        ("centre_images", 0),
        ("every", 0),
        ("learning_rate", 0.0),
        ("backbone_share", 1.5),
        ("drop_at", -0.1),
        ("prior", -1.0),
        ("prior", float("nan")),
        ("prior", float("inf")),
        ("divergence", -1.0),
        ("divergence", float("nan")),
        ("divergence", float("inf")),
        ("weight_decay", -1.0),
        ("weight_decay", float("nan")),
        ("weight_decay", float("inf")),
    ],
)
def test_a_setting_that_cannot_be_run_is_refused(setting: str, value: float) -> None:
    with pytest.raises(UserError, match=f"single_sample: {setting} is {value}; it must be"):
        single_sample.Config(**{setting: value})
