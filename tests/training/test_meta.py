import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.slots import towards
from generalizeformer.errors import UserError
from generalizeformer.imaging.augmentation import augment
from generalizeformer.imaging.augmentation import recipe as augmentation_recipe
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.training import meta
from generalizeformer.training._scoring import accuracy, plain_accuracy
from generalizeformer.training.meta import Config, Meta, Pair

from .toys import PREPROCESSING, fabric, network, same, seeded, sources, state, wrapped


def pairs(*weights: float) -> list[Pair]:
    """One model for each weight, all with one φ, each with a domain of its own."""
    data = sources()
    models = [wrapped(network()) for _ in weights]
    for model in models[1:]:
        model.generator = models[0].generator
    return [
        Pair(model, domain, domain, weight)
        for model, domain, weight in zip(models, data.domains, weights, strict=False)
    ]


def meta_of(given: list[Pair], **settings: Any) -> Meta:
    defaults = {"steps": 20, "images": 12, "sizes": (1, 4), "validation_sizes": (1, 4)}
    return Meta(given, PREPROCESSING, Config(**(defaults | settings)), fabric())


def watched(model: GeneralizeFormer) -> list[tuple[Tensor, ...]]:
    """What the model is called with from now on."""
    calls: list[tuple[Tensor, ...]] = []
    model.register_forward_pre_hook(lambda _, given: calls.append(given))
    return calls


def test_only_the_generator_moves() -> None:
    given = pairs(1.0, 1.0)
    before = [state(pair.model.backbone) for pair in given]
    generator = state(given[0].model.generator)
    method = meta_of(given)
    for step in range(6):
        method.update(step, seeded(step))
    assert not same(generator, state(method.generator))
    for pair, backbone in zip(given, before, strict=True):
        assert same(backbone, state(pair.model.backbone))
        assert all(value.grad is None for value in pair.model.backbone.parameters())


def test_what_to_expect_of_a_target_is_measured_on_unseen_domains_alone() -> None:
    """Two pairs of three, weighed alike whatever their weight, in the last of the sizes."""
    one, two, known = pairs(1.0, 5.0, 1.0)
    method = meta_of([replace(one, unseen=True), replace(two, unseen=True), known])
    for step in range(3):
        method.update(step, seeded(step))
    metrics = method.validate()
    method.load_weights(method.smooth)
    cpu = torch.device("cpu")
    adapted = [accuracy(p.model, p.validation, PREPROCESSING, 4, cpu) for p in (one, two)]
    plain = [plain_accuracy(p.model, p.validation, PREPROCESSING, cpu) for p in (one, two)]
    assert metrics["unseen_adapted"] == pytest.approx(sum(adapted) / 2)
    assert metrics["unseen_plain"] == pytest.approx(sum(plain) / 2)
    assert "unseen_plain" not in meta_of([known]).validate()


def test_a_generator_that_does_nothing_gains_nothing_on_unseen_domains() -> None:
    given = [replace(pair, unseen=True) for pair in pairs(1.0, 1.0)]
    still = {"first_move": 0.0, "first_pull": 0.0, "first_recall": 0.0}
    metrics = meta_of(given, looks=Looks(), **still).validate()
    assert metrics["unseen_adapted"] == metrics["unseen_plain"]


def test_models_with_a_generator_each_are_refused() -> None:
    apart = [pairs(1.0)[0], pairs(1.0)[0]]
    with pytest.raises(AssertionError):
        meta_of(apart)


def test_an_update_is_a_clipped_adamw_step_on_the_cross_entropy_of_generated_answers() -> None:
    given = pairs(1.0)
    method = meta_of(given, clip=0.01)
    plain = copy.deepcopy(given[0].model)
    torch.manual_seed(5)
    method.update(10, seeded(3))

    generator = seeded(3)
    torch.multinomial(torch.ones(1), 1, generator=generator)  # which pair
    drawn = method._draw(given[0].train, generator)
    rate = method.optimizer.param_groups[0]["lr"]
    optimizer = torch.optim.AdamW(plain.generator.parameters(), lr=rate, weight_decay=1e-4)
    torch.manual_seed(5)
    plain.generator.train()
    F.cross_entropy(plain(PREPROCESSING(drawn.images), drawn.groups), drawn.labels).backward()
    assert torch.nn.utils.clip_grad_norm_(plain.generator.parameters(), 0.01) > 0.01
    optimizer.step()
    assert same(state(method.generator), state(plain.generator))


def test_groups_have_the_sizes_asked_for() -> None:
    given = pairs(1.0)
    calls = watched(given[0].model)
    method = meta_of(given, images=30, sizes=(1, 4))
    for step in range(5):
        method.update(step, seeded(step))
    for images, groups in calls:
        sizes = torch.bincount(groups).tolist()
        assert len(images) == 30
        assert set(sizes[:-1]) <= {1, 4}
        assert sizes[-1] <= 4
    assert {1, 4} <= {size for _, groups in calls for size in torch.bincount(groups).tolist()}


def test_a_group_is_never_larger_than_its_domain() -> None:
    given = pairs(1.0)
    calls = watched(given[0].model)
    meta_of(given, images=60, sizes=(1000,)).update(0, seeded())
    assert torch.bincount(calls[0][1]).tolist() == [24, 24, 12]


@pytest.mark.parametrize(("share", "expected"), [(1.0, 8), (0.0, 0), (0.5, range(1, 8))])
def test_looks_are_used_in_their_share_of_the_steps(
    share: float, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []

    def spy(pixels: Tensor, groups: Tensor, generator: Any, config: Any) -> Tensor:
        seen.append(groups)
        return pixels

    monkeypatch.setattr(meta, "apply_looks", spy)
    method = meta_of(pairs(1.0), looks=Looks(), look_share=share)
    drawn = [method._draw(method.pairs[0].train, seeded(step)).groups for step in range(8)]
    assert len(seen) in (expected if isinstance(expected, range) else [expected])
    assert all(any(torch.equal(groups, look) for groups in drawn) for look in seen)


def test_without_looks_the_images_are_the_domains_own() -> None:
    method = meta_of(pairs(1.0))
    domain = method.pairs[0].train
    drawn = method._draw(domain, seeded())
    assert all(any(torch.equal(i, own) for own in domain.images) for i in drawn.images)


def test_augmentation_comes_before_looks_and_changes_neither_groups_nor_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen, seen = augmentation_recipe("domainbed"), []

    def spy(pixels: Tensor, groups: Tensor, generator: Any, config: Any) -> Tensor:
        seen.append(pixels)
        return pixels

    monkeypatch.setattr(meta, "apply_looks", spy)
    given = pairs(1.0)
    generator = seeded(4)
    plain = meta_of(given)._draw(given[0].train, generator)
    expected = augment(plain.images, generator, chosen)
    method = meta_of(given, augmentation=chosen, looks=Looks(), look_share=1.0)
    drawn = method._draw(given[0].train, seeded(4))
    assert torch.equal(drawn.images, expected)
    assert torch.equal(seen[0], expected)
    assert not torch.equal(expected, plain.images)
    assert torch.equal(drawn.labels, plain.labels)
    assert torch.equal(drawn.groups, plain.groups)


def test_the_average_forgets_the_start_quickly_and_then_keeps_to_its_decay() -> None:
    method = meta_of(pairs(1.0), average=0.5)
    expected = state(method.generator)
    for step, decay in enumerate((1 / 10, 2 / 11, 3 / 12)):
        method.update(step, seeded(step))
        now = method.generator.state_dict()
        expected = {name: decay * expected[name] + (1 - decay) * now[name] for name in now}
    torch.testing.assert_close(method.smooth, expected)
    method.update(100, seeded(9))
    now = method.generator.state_dict()
    torch.testing.assert_close(
        method.smooth, {name: 0.5 * expected[name] + 0.5 * now[name] for name in now}
    )


def test_validation_uses_the_average_and_leaves_the_raw_weights() -> None:
    given = pairs(1.0)
    method = meta_of(given)
    for step in range(3):
        method.update(step, seeded(step))
    raw, used = state(method.generator), []
    given[0].model.register_forward_pre_hook(
        lambda model, _: used.append((state(model.generator), model.generator.training))
    )
    method.validate()
    assert used
    assert not same(raw, method.smooth)
    assert all(same(weights, method.smooth) and not training for weights, training in used)
    assert same(raw, state(method.generator))


def test_pairs_are_drawn_by_their_weights() -> None:
    given = pairs(0.75, 0.25, 0.0)
    calls = [watched(pair.model) for pair in given]
    method = meta_of(given, images=2, sizes=(1,))
    for step in range(40):
        method.update(step, seeded(step))
    counts = [len(seen) for seen in calls]
    assert counts[2] == 0
    assert 24 <= counts[0] <= 36
    assert counts[0] + counts[1] == 40


def test_the_score_weighs_pairs_and_takes_the_mean_over_group_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = pairs(3.0, 1.0)
    method = meta_of(given)
    scores = {(0, 1): 10.0, (0, 4): 20.0, (1, 1): 50.0, (1, 4): 100.0}
    monkeypatch.setattr(
        method, "_accuracy", lambda _, pair, size: scores[int(pair is given[1]), size]
    )
    assert method.validate() == {"accuracy_1": 20.0, "accuracy_4": 40.0, "score": 30.0}


def test_without_decay_clipping_and_schedule_an_update_is_a_step_of_plain_adam() -> None:
    given = pairs(1.0)
    rate = 1e-2
    method = meta_of(given, learning_rate=rate, weight_decay=0.0, schedule="constant", clip=None)
    plain = copy.deepcopy(given[0].model)
    optimizer = torch.optim.Adam(plain.generator.parameters(), lr=rate)
    plain.generator.train()
    for step in (0, 1, 19):
        torch.manual_seed(step)
        method.update(step, seeded(step))
        generator = seeded(step)
        torch.multinomial(torch.ones(1), 1, generator=generator)  # which pair
        drawn = method._draw(given[0].train, generator)
        torch.manual_seed(step)
        optimizer.zero_grad()
        F.cross_entropy(plain(PREPROCESSING(drawn.images), drawn.groups), drawn.labels).backward()
        optimizer.step()
    torch.testing.assert_close(state(method.generator), state(plain.generator))


def test_validation_gives_every_other_group_a_look_always_the_same() -> None:
    given = pairs(1.0)
    calls = watched(given[0].model)
    clean = meta_of(given, validation_sizes=(4,))
    looking = meta_of(given, validation_sizes=(4,), looks=Looks(chance=1.0))
    for method in (clean, looking, looking):
        method.validate()
    (plain, groups), (first, _), (second, _) = calls
    assert torch.equal(first, second)
    changed = (first != plain).flatten(1).any(1)
    assert torch.equal(changed, groups % 2 == 0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("images", 0),
        ("every", 0),
        ("sizes", ()),
        ("validation_sizes", (0,)),
        ("look_share", 1.5),
        ("average", -0.1),
        ("clip", 0.0),
        ("weight_decay", -1.0),
        ("weight_decay", float("nan")),
        ("first_move", float("nan")),
        ("first_pull", float("inf")),
        ("first_recall", float("nan")),
        ("learning_rate", float("nan")),
    ],
)
def test_a_setting_that_cannot_be_run_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"meta: {setting} is "):
        Config(**{setting: value})


def test_phi_begins_with_the_moves_it_is_told_to() -> None:
    method = meta_of(pairs(1.0), first_move=0.2, first_pull=0.3, first_recall=0.4)
    model = method.pairs[0].model.eval()
    pixels = PREPROCESSING(method.pairs[0].train.read(torch.arange(4)))
    seen = model.observe(pixels)
    seen = replace(seen, grouping=replace(seen.grouping, alike=True))
    told = model.generator(model.slots.parameters_of(model.backbone), seen)
    for slot in model.slots:
        # Four images are weighed against one of the source.
        expected = {"norm": 0.2 * 4 / 5, "classifier": 0.3}[slot.kind]
        moves = told[towards(slot.layer)]
        torch.testing.assert_close(moves, torch.full_like(moves, expected))
    assert model.prototypes is not None
    source = model.slots.parameters_of(model.backbone)
    for slot in model.slots:
        own = expected = slot.rows(source)
        if slot.kind == "classifier":
            expected = own.lerp(model.prototypes.rows(own), 0.4)
        moved = slot.rows(told)
        torch.testing.assert_close(moved, expected.expand_as(moved))
    assert all(torch.equal(v, method.generator.state_dict()[n]) for n, v in method.smooth.items())


def test_a_beginning_beyond_the_bounds_stays_within_them() -> None:
    method = meta_of(pairs(1.0), first_move=0.7)
    model = method.pairs[0].model.eval()
    pixels = PREPROCESSING(method.pairs[0].train.read(torch.arange(4)))
    seen = model.observe(pixels)
    seen = replace(seen, grouping=replace(seen.grouping, alike=True))
    told = model.generator(model.slots.parameters_of(model.backbone), seen)
    moves = [told[towards(slot.layer)] for slot in model.slots if slot.kind == "norm"]
    for move in moves:
        torch.testing.assert_close(move, torch.full_like(move, 0.9 * 0.5 * 4 / 5))


@pytest.mark.parametrize("name", ["first_move", "first_pull", "first_recall"])
def test_a_beginning_in_the_other_direction_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"meta: {name} is -0.1; it must be 0 or above"):
        Config(**{name: -0.1})


def test_a_phi_without_such_moves_begins_as_it_is() -> None:
    given = pairs(1.0)
    given[0].model.generator = torch.nn.Linear(2, 2)
    before = copy.deepcopy(given[0].model.generator.state_dict())
    assert same(meta_of(given, first_move=0.2).generator.state_dict(), before)
