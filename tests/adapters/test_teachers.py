"""Methods with a teacher and a student: their update rules by hand, and the parts they are made of."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import toy_network
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torchvision.ops import FrozenBatchNorm2d
from torchvision.transforms import functional as reference

from generalizeformer.adapters import _strong_views, cotta, rotta
from generalizeformer.adapters._balanced_memory import BalancedMemory
from generalizeformer.adapters._robust_norm import following, make_robust, robust_norms
from generalizeformer.adapters._strong_views import strong_view
from generalizeformer.adapters._teacher import soft_cross_entropy
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import Config, GeneralizeFormer
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, SlotError, UserError
from generalizeformer.seeds import derive

NEVER, ALWAYS = 0.0, 1.0  # confidences below which CoTTA averages views
LEARNING = {
    "cotta": cotta.Config(views=2, confidence=ALWAYS, learning_rate=0.01),
    "cotta-imagenet": cotta.Config(**cotta.GRID[-1], views=2),
    "rotta": rotta.Config(update_every=6, memory_size=10, learning_rate=0.01),
}
every_learner = pytest.mark.parametrize("config", LEARNING.values(), ids=LEARNING)


def assert_close(got: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def build(source: GeneralizeFormer, config: Any) -> Any:
    method = cotta if isinstance(config, cotta.Config) else rotta
    return method.build(source, config)


def net(*last: nn.Module, norm: nn.Module | None = None, channels: int = 3) -> GeneralizeFormer:
    """conv, a norm layer, pooling, whatever comes last, a classifier."""
    torch.manual_seed(4)
    norm = nn.BatchNorm2d(8) if norm is None else norm
    layers = [nn.Conv2d(channels, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    backbone = nn.Sequential(*layers, *last, nn.Linear(8, 5)).double()
    return GeneralizeFormer(backbone, Config(selection=Selection(kinds=("classifier",))))


def parameters(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def in_batch_mode(backbone: nn.Module, images: Tensor) -> Tensor:
    network = copy.deepcopy(backbone).train()
    return network(images).detach()  # type: ignore[no-any-return]


def equal_parameters(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


# Both


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


# Views


def pixels_of(images: Tensor, card: Preprocessing) -> Tensor:
    mean, std = (images.new_tensor(part).reshape(-1, 1, 1) for part in (card.mean, card.std))
    return images * std + mean


def standardised(pixels: Tensor, card: Preprocessing) -> Tensor:
    mean, std = (pixels.new_tensor(part).reshape(-1, 1, 1) for part in (card.mean, card.std))
    return (pixels - mean) / std


CARDS = (Preprocessing(), Preprocessing(mean=(0.5, 0.1, 0.9), std=(1.0, 0.5, 2.0)))


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def test_a_view_does_not_depend_on_how_pixels_were_standardised() -> None:
    pixels = torch.rand(4, 3, 12, 10, generator=seeded()).double()
    views = [
        pixels_of(strong_view(standardised(pixels, card), card, seeded(5)), card) for card in CARDS
    ]
    assert_close(views[0], views[1])
    assert (views[0] - pixels).abs().mean() > 0.05


@given(
    st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.booleans()
)
@settings(max_examples=25, deadline=None)
def test_views_are_images_of_the_same_kind(
    seed: int, count: int, height: int, width: int, coloured: bool
) -> None:
    card = CARDS[1] if coloured else Preprocessing(mean=(0.2,), std=(0.3,))
    images = 3 * torch.randn(count, card.channels, height, width, generator=seeded(seed))
    view = strong_view(images, card, seeded(seed))
    assert view.shape == images.shape
    assert view.dtype == images.dtype
    pixels = pixels_of(view, card)
    assert pixels.min() >= -1e-5
    assert pixels.max() <= 1 + 1e-5


def test_all_images_of_a_view_change_alike_but_for_noise() -> None:
    pixels = torch.rand(1, 3, 16, 16, generator=seeded()).expand(6, 3, 16, 16)
    one, *others = strong_view(pixels, Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3), seeded(1))
    for other in others:
        assert 0 < (one - other).abs().max() < 10 * _strong_views.NOISE


def test_half_of_the_views_are_mirrored_and_all_differ() -> None:
    card = Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3)
    pixels = torch.zeros(1, 3, 16, 16)
    pixels[..., :8] = 1
    generator, mirrored, seen = seeded(), 0, []
    for _ in range(60):
        view = strong_view(pixels, card, generator)
        mirrored += int(view[..., :4].mean() < view[..., -4:].mean())
        seen.append(view)
    assert 15 <= mirrored <= 45
    assert len(torch.unique(torch.cat(seen), dim=0)) == 60


@pytest.mark.parametrize("shape", [(16, 16), (12, 20)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_moving_is_the_references_on_an_image_padded_with_its_edge(
    shape: tuple[int, int], seed: int
) -> None:
    pixels = torch.rand(2, 3, *shape, generator=seeded(9)).double()
    draws = [torch.rand(size, generator=g) for g in [seeded(seed)] for size in ((), (), 2)]
    degrees, scale = 30 * draws[0].item() - 15, 0.9 + 0.2 * draws[1].item()
    x, y = (
        round((2 * d - 1) * side / 8)
        for d, side in zip(draws[2].tolist(), shape[::-1], strict=True)
    )
    padded = reference.pad(pixels, [shape[1] // 2, shape[0] // 2], padding_mode="edge")
    bilinear = reference.InterpolationMode.BILINEAR
    # Turned the other way round: torchvision's angles go clockwise, and either way is as likely.
    moved = reference.affine(padded, -degrees, [x, y], scale, [0.0], interpolation=bilinear)
    expected = reference.center_crop(moved, list(shape))
    assert_close(_strong_views._moved(pixels, seeded(seed)), expected, atol=1e-6)


# CoTTA


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


# RoTTA's memory


def memory(capacity: int, classes: int, **weights: float) -> BalancedMemory:
    return BalancedMemory(
        capacity, classes, **{"age_weight": 1.0, "uncertainty_weight": 1.0, **weights}
    )


def filled(kept: BalancedMemory, *arrivals: tuple[int, float]) -> list[int]:
    """Which of the arrivals (label, entropy) are in the memory afterwards."""
    for number, (label, entropy) in enumerate(arrivals):
        kept.add(torch.full((1, 2, 2), float(number)), label, entropy)
    return [int(image.mean()) for image in kept.images]


def expected_contents(capacity: int, classes: int, arrivals: list[tuple[int, float]]) -> set[int]:
    """The rule in another form: a list per class, ages counted up one by one."""
    lists: list[list[dict[str, Any]]] = [[] for _ in range(classes)]

    def score(item: dict[str, Any]) -> float:
        old = 1 / (1 + math.exp(-item["age"] / capacity))
        return old + item["entropy"] / math.log(classes)  # type: ignore[no-any-return]

    for number, (label, entropy) in enumerate(arrivals):
        new = {"number": number, "age": 0, "entropy": entropy}
        most = max(len(part) for part in lists)
        full = sum(len(part) for part in lists) >= capacity
        if len(lists[label]) * classes >= capacity:
            affected = [lists[label]]
        else:
            affected = [part for part in lists if len(part) == most] if full else []
        entries = [(part, item) for part in affected for item in part]
        worst = max((score(item) for _, item in entries), default=math.inf)
        if worst > score(new):
            if entries:
                part, item = [entry for entry in entries if score(entry[1]) == worst][-1]
                part.remove(item)
            lists[label].append(new)
        for part in lists:
            for item in part:
                item["age"] += 1
    return {item["number"] for part in lists for item in part}


@given(
    st.integers(1, 9),
    st.integers(2, 5),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.2, 0.5, 1.3])), max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_memory_is_bounded_balanced_and_follows_the_rule(
    capacity: int, classes: int, drawn: list[tuple[int, float]]
) -> None:
    arrivals = [(0, 0.1), *((label % classes, entropy) for label, entropy in drawn)]
    kept = memory(capacity, classes)
    contents = filled(kept, *arrivals)
    counts = [sum(item.label == label for item in kept.items) for label in range(classes)]
    assert 0 < len(kept.items) <= capacity
    assert max(counts) <= math.ceil(capacity / classes)
    assert set(contents) == expected_contents(capacity, classes, arrivals)


def test_score_by_hand() -> None:
    kept = memory(8, 4, age_weight=2.0, uncertainty_weight=3.0)
    filled(kept, (0, 0.7), (1, 0.0), (2, 0.0))
    expected = 2.0 / (1 + math.exp(-3 / 8)) + 3.0 * 0.7 / math.log(4)
    assert kept.score(kept.items[0]) == pytest.approx(expected, rel=1e-12)
    assert kept.ages == [3 / 8, 2 / 8, 1 / 8]


def test_a_class_with_its_share_replaces_only_its_own() -> None:
    assert filled(memory(4, 2), (0, 0.1), (0, 0.6), (1, 0.6), (0, 0.1)) == [0, 2, 3]


def test_a_class_below_its_share_replaces_the_worst_of_the_largest_class() -> None:
    # Shares of 4/3: two images may be of one class, so 0 and 1 fill the memory before 2 arrives.
    arrivals = [(0, 0.1), (0, 0.3), (1, 0.2), (1, 0.9), (2, 0.1)]
    assert filled(memory(4, 3), *arrivals) == [0, 1, 2, 4]


def test_the_older_of_equally_certain_images_goes() -> None:
    assert filled(memory(4, 2), (0, 0.3), (0, 0.3), (0, 0.3)) == [1, 2]


def test_without_a_weight_for_age_the_last_of_equals_and_never_for_its_equal() -> None:
    equals = [(0, 0.5), (0, 0.5), (0, 0.5)]
    assert filled(memory(4, 2, age_weight=0.0), *equals) == [0, 1]
    assert filled(memory(4, 2, age_weight=0.0), *equals, (0, 0.4)) == [0, 3]


def test_an_image_that_is_not_taken_ages_the_others_all_the_same() -> None:
    kept = memory(2, 2)
    assert filled(kept, (0, 0.0), (0, 1.0)) == [0]
    assert kept.ages == [1.0]
    assert kept.arrived == 2


def test_memory_keeps_copies() -> None:
    kept, batch = memory(2, 2), torch.ones(50, 1, 2, 2)
    kept.add(batch[3], 0, 0.0)
    batch.zero_()
    assert kept.images.eq(1).all()
    assert kept.items[0].image.untyped_storage().nbytes() == 4 * 4


# RoTTA's statistics


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False)])
def test_following_all_the_way_is_batch_statistics_and_has_its_gradients(
    norm: nn.Module, images: Tensor
) -> None:
    backbone = net(norm=norm).backbone
    robust = copy.deepcopy(backbone)
    make_robust(robust, 1.0, "rotta")
    backbone.train()
    answers, gradients = [], []
    with following(robust):
        for network in (backbone, robust):
            answers.append(network(images))
            gradients.append(torch.autograd.grad(answers[-1].square().mean(), network[0].weight)[0])
    assert_close(answers[1], answers[0])
    assert_close(gradients[1], gradients[0])
    assert not any(layer.following for layer in robust_norms(robust))


def test_statistics_move_their_share_and_normalise_as_moved() -> None:
    norm = nn.BatchNorm2d(2).double()
    norm.running_mean.copy_(torch.tensor([1.0, -1.0]))
    norm.running_var.copy_(torch.tensor([4.0, 0.5]))
    network = nn.Sequential(norm)
    make_robust(network, 0.25, "rotta")
    x = torch.tensor([[0.0, 8.0], [2.0, 2.0]]).double().reshape(2, 2, 1, 1).repeat(1, 1, 3, 3)
    with following(network):
        y = network(x)
    mean = torch.tensor([0.75 * 1 + 0.25 * 1, 0.75 * -1 + 0.25 * 5]).double()
    variance = torch.tensor([0.75 * 4 + 0.25 * 1, 0.75 * 0.5 + 0.25 * 9]).double()
    assert_close(norm.running_mean, mean)
    assert_close(norm.running_var, variance)
    expected = (x - mean.reshape(2, 1, 1)) / (variance + 1e-5).sqrt().reshape(2, 1, 1)
    assert_close(y, expected)
    assert_close(network(x), expected)  # what follows no more keeps them
    assert_close(norm.running_mean, mean)


def test_robust_layers_give_back_what_they_are_given_in_lower_precision(images: Tensor) -> None:
    network = nn.Sequential(nn.BatchNorm2d(3)).eval()
    expected = network(images.bfloat16())
    make_robust(network, 0.0, "rotta")
    assert torch.equal(network(images.bfloat16()), expected)
    with following(network):
        moved = network(images.bfloat16())
    assert moved.dtype == torch.bfloat16
    torch.testing.assert_close(moved, expected)


def test_a_layer_used_twice_is_replaced_in_both_places(images: Tensor) -> None:
    norm = nn.BatchNorm2d(3).double()
    network = nn.Sequential(norm, nn.ReLU(), norm).eval()
    expected = network(images)
    make_robust(network, 0.5, "rotta")
    assert network[0] is network[2]
    assert len(robust_norms(network)) == 1
    assert_close(network(images), expected)


# RoTTA


def test_rotta_is_the_source_until_its_first_update(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = rotta.build(source, rotta.Config(update_every=24, statistics_rate=0.5))
    for batch in images.split(5):
        assert_close(adapter.step(batch), backbone(batch).detach())
    assert (adapter.predict(images) - backbone(images)).abs().max() > 1e-2


def test_rotta_that_moves_nothing_stays_the_source(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = rotta.Config(update_every=2, learning_rate=0.0, statistics_rate=0.0, teacher_rate=0.5)
    adapter = rotta.build(source, config)
    for batch in images.split(8):
        assert_close(adapter.step(batch), backbone(batch).detach())


def test_rotta_answers_each_image_alone(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = rotta.build(source, rotta.Config(update_every=8))
    adapter.step(images)
    assert_close(adapter.predict(images)[3:4], adapter.predict(images[3:4]))


def test_rotta_answers_the_whole_batch_before_updates_that_fall_into_it(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = rotta.build(source, rotta.Config(update_every=3, statistics_rate=0.5))
    assert_close(adapter.step(images), backbone(images).detach())


def test_rotta_counts_images_and_not_batches(source: GeneralizeFormer, images: Tensor) -> None:
    one, other = (rotta.RoTTA(source, rotta.Config(update_every=8)) for _ in range(2))
    answers = [
        torch.cat([adapter.step(batch) for batch in images.split(size)])
        for adapter, size in ((one, 8), (other, 4))
    ]
    assert_close(answers[1], answers[0])
    for first, second in zip(one.student.parameters(), other.student.parameters(), strict=True):
        assert_close(first, second, atol=1e-7)


def test_rotta_statistics_follow_the_memory_by_hand(images: Tensor) -> None:
    model = GeneralizeFormer(toy_network())
    rate = 0.05
    config = rotta.Config(update_every=8, memory_size=5, statistics_rate=rate)
    adapter = rotta.RoTTA(model, config)
    first = model.backbone.conv1
    mean, variance = model.backbone.bn1.running_mean, model.backbone.bn1.running_var
    seen = model.backbone.bn1.running_mean, model.backbone.bn1.running_var
    generator = seeded(derive("rotta", 0))
    for batch in images.split(8):
        adapter.step(batch)
        kept = adapter.memory.images
        shown = first(kept), first(strong_view(kept, model.card.preprocessing, generator))
        statistics = [(x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)) for x in shown]
        mean, variance = (
            (1 - rate) * old + rate * new
            for old, new in zip((mean, variance), statistics[0], strict=True)
        )
        seen = tuple(
            (1 - rate) * old + rate * new for old, new in zip(seen, statistics[1], strict=True)
        )
    teacher, student = adapter.backbone.bn1.layer, adapter.student.bn1.layer  # type: ignore[union-attr]
    assert_close(teacher.running_mean, mean.detach())
    assert_close(teacher.running_var, variance.detach())
    assert_close(student.running_mean, seen[0].detach())
    assert_close(student.running_var, seen[1].detach())
    assert (mean - seen[0]).abs().max() > 1e-4


def test_rotta_updates_by_hand(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    """One update from four images, all of which find room, so that their ages are 4, 3, 2 and 1."""
    rate, share = 0.01, 0.1
    config = rotta.Config(
        update_every=4, memory_size=20, learning_rate=rate, teacher_rate=share, statistics_rate=0.05
    )
    adapter = rotta.RoTTA(source, config)
    adapter.step(images[:4])
    assert adapter.memory.ages == [4 / 20, 3 / 20, 2 / 20, 1 / 20]

    teacher, student = (copy.deepcopy(backbone) for _ in range(2))
    view = strong_view(images[:4], source.card.preprocessing, seeded(derive("rotta", 0)))
    for network in (teacher, student):
        make_robust(network, 0.05, "rotta")
    with following(teacher, student):
        q, p = teacher(images[:4]).softmax(1).detach(), student(view).softmax(1)
    ages = torch.tensor([4, 3, 2, 1]).double() / 20
    weights = torch.exp(-ages) / (1 + torch.exp(-ages))
    loss = (weights * -(q * p.log()).sum(1)).sum() / 4
    norms = [norm.layer for norm in robust_norms(student)]
    values = [value for norm in norms for value in (norm.weight, norm.bias)]
    gradients = torch.autograd.grad(loss, values)
    moved = [
        value for n in robust_norms(adapter.student) for value in (n.layer.weight, n.layer.bias)
    ]
    slow = [
        value for n in robust_norms(adapter.backbone) for value in (n.layer.weight, n.layer.bias)
    ]
    for value, gradient, got, taught in zip(values, gradients, moved, slow, strict=True):
        solid = gradient.abs() > 1e-9
        expected = value - rate * gradient / (gradient.abs() + 1e-8)
        assert solid.any()
        assert_close(got[solid], expected[solid], atol=1e-7)
        assert_close(taught, (1 - share) * value + share * got)


def test_rotta_moves_the_affine_parts_of_batch_norm_only(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = rotta.RoTTA(source, rotta.Config(update_every=8))
    adapter.step(images)
    before = dict(backbone.named_parameters())
    for network in (adapter.student, adapter.backbone):
        after = {name.replace(".layer", ""): v for name, v in network.named_parameters()}
        moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
        norms = ("blocks.0.1", "blocks.1.1")
        assert moved == {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")}


def test_rotta_learns_from_its_memory_again_after_images_left_it(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = rotta.RoTTA(source, rotta.Config(update_every=8, memory_size=6))
    for batch in images.split(8):
        adapter.step(batch)
        assert len(adapter.memory.items) <= 6
    arrivals = [item.arrival for item in adapter.memory.items]
    assert all(
        torch.equal(item.image, images[arrival])
        for item, arrival in zip(adapter.memory.items, arrivals, strict=True)
    )
    assert max(arrivals) >= 8


def test_rotta_serves_models_that_normalise_each_image(images: Tensor) -> None:
    model = net(norm=nn.GroupNorm(2, 8))
    adapter = rotta.RoTTA(model, rotta.Config(update_every=8))
    adapter.step(images)
    moved = dict(adapter.student.named_parameters())
    same = {n for n, v in model.backbone.named_parameters() if torch.equal(v, moved[n])}
    assert set(moved) - same == {"1.weight", "1.bias"}


def test_rotta_serves_frozen_batch_norm_beside_one_that_can_move(images: Tensor) -> None:
    model = net(nn.BatchNorm1d(8), norm=FrozenBatchNorm2d(8))
    adapter = rotta.RoTTA(model, rotta.Config(update_every=1, memory_size=1))
    assert_close(adapter.step(images[:1]), model.backbone.eval()(images[:1]).detach())
    assert adapter.step(images[1:3]).isfinite().all()
    assert len(robust_norms(adapter.student)) == 2


def test_rotta_needs_an_affine_norm_layer() -> None:
    expected = r"^rotta: the model has no normalisation layer .*; try t3a or generalizeformer$"
    for norm in (nn.Identity(), nn.BatchNorm2d(8, affine=False), FrozenBatchNorm2d(8)):
        with pytest.raises(SlotError, match=expected):
            rotta.build(net(norm=norm), rotta.Config())


def test_rotta_refuses_what_only_looks_like_batch_norm() -> None:
    class Doubled(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    with pytest.raises(SlotError, match=r"^rotta: 1 is a Doubled, which does not .*; try t3a$"):
        rotta.build(net(norm=Doubled(8)), rotta.Config())


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


def test_images_of_lower_precision_are_served(images: Tensor) -> None:
    model = GeneralizeFormer(
        net().backbone.bfloat16(), Config(selection=Selection(kinds=("classifier",)))
    )
    for config in LEARNING.values():
        logits = build(model, config).step(images.bfloat16())
        assert logits.dtype == torch.bfloat16
        assert logits.isfinite().all()
