"""Laws of the orders of arrival, on labels alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from statistics import mean
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from generalizeformer import catalog
from generalizeformer.config import from_dict
from generalizeformer.data.streams import ORDERS
from generalizeformer.errors import DataError

ALL = catalog.names(ORDERS)
ONCE = ("shuffled", "in_turn", "blocks", "dirichlet", "slots", "by_class")
TARGET_AFTER_TARGET = (
    "in_turn",
    "dirichlet",
    "slots",
    "by_class",
    "imbalanced",
    "label_shift",
    "target_shift",
)

# Images of each class in the domains of PACS.
PACS = {
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}


def arranged(
    order: str, parts: Sequence[Tensor], seed: int = 0, batch_size: int = 4, **given: Any
) -> Tensor:
    module = catalog.load(ORDERS, order)
    generator = Generator().manual_seed(seed)
    config = from_dict(module.Config, given)
    rows: Tensor = module.arrange(parts, generator, config, batch_size)
    assert rows.dtype == torch.int64
    assert rows.ndim == 2
    assert rows.shape[1] == 2
    return rows


def labels(*counts: int) -> Tensor:
    """Labels of so many images of every class, in an order that helps nobody."""
    ordered = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return ordered[torch.randperm(len(ordered), generator=Generator().manual_seed(7))]


def seen(rows: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The labels in order of arrival."""
    return torch.stack([parts[target][image] for target, image in rows.tolist()])


def run_length(arrived: Tensor) -> float:
    return len(arrived) / (1 + int((arrived[1:] != arrived[:-1]).sum()))


def everything(parts: Sequence[Tensor]) -> list[list[int]]:
    return [[target, image] for target, part in enumerate(parts) for image in range(len(part))]


def easy(order: str) -> dict[str, Any]:
    """Settings with which an order can be drawn from few images."""
    return {
        "dirichlet": {"minimum": 0},
        "imbalanced": {"cap": 1.0},
        "recurring": {"visits": 2, "per_visit": 3},
    }.get(order, {})


few = st.lists(
    st.lists(st.integers(0, 4), min_size=1, max_size=30).map(torch.tensor), min_size=1, max_size=3
)


def test_the_catalogue_holds_the_orders() -> None:
    assert sorted(ALL) == sorted(
        (*ONCE, "imbalanced", "label_shift", "mixture", "one_pass", "recurring", "target_shift")
    )


@pytest.mark.parametrize("order", ONCE)
@settings(deadline=None, max_examples=25)
@given(parts=few, batch_size=st.integers(1, 9), seed=st.integers(0, 5))
def test_every_image_arrives_exactly_once(
    order: str, parts: list[Tensor], batch_size: int, seed: int
) -> None:
    rows = arranged(order, parts, seed, batch_size, **easy(order))
    assert sorted(rows.tolist()) == everything(parts)


@pytest.mark.parametrize("order", [name for name in ALL if name != "one_pass"])
@settings(deadline=None, max_examples=25)
@given(parts=few, seed=st.integers(0, 5))
def test_only_images_that_are_there_arrive_and_no_target_is_left_out(
    order: str, parts: list[Tensor], seed: int
) -> None:
    rows = arranged(order, parts, seed, **easy(order))
    assert all(0 <= image < len(parts[target]) for target, image in rows.tolist())
    assert set(rows[:, 0].tolist()) == set(range(len(parts)))


@pytest.mark.parametrize("order", ALL)
def test_the_seed_sets_the_order(order: str) -> None:
    parts = [labels(15, 20, 25)] * 2
    one, same, other = (arranged(order, parts, seed, **easy(order)) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("order", [name for name in ALL if name != "blocks"])
def test_the_batch_size_takes_no_part_in_the_draw(order: str) -> None:
    parts = [labels(15, 20, 25)] * 2
    one, other = (arranged(order, parts, 0, size, **easy(order)) for size in (1, 20))
    assert torch.equal(one, other)


@pytest.mark.parametrize("order", TARGET_AFTER_TARGET)
def test_targets_come_one_after_another(order: str) -> None:
    targets = arranged(order, [labels(15, 20, 25)] * 3)[:, 0]
    assert torch.equal(targets, targets.sort().values)


@pytest.mark.parametrize("order", ["shuffled", "mixture"])
def test_every_batch_of_a_mixed_stream_has_its_share_of_every_target(order: str) -> None:
    parts = [labels(300, 300), labels(600, 600)]
    batches = torch.split(arranged(order, parts)[:, 0], 20)
    shares = [batch.float().mean().item() for batch in batches]
    # Of 20 images two thirds are expected; the deviation of such a share is 0.105.
    assert mean(shares) == pytest.approx(2 / 3, abs=0.01)
    assert torch.tensor(shares).std().item() == pytest.approx(0.105, abs=0.035)


# blocks


@pytest.mark.parametrize("batch_size", [1, 7, 20])
def test_a_batch_of_blocks_has_one_target_chosen_uniformly(batch_size: int) -> None:
    parts = [labels(700), labels(700), labels(1400)]
    targets = arranged("blocks", parts, 0, batch_size)[:, 0]
    batches = torch.split(targets, batch_size)
    assert all(len(set(batch.tolist())) == 1 for batch in batches)
    first = torch.stack([batch[0] for batch in batches[: 1500 // batch_size]])
    assert torch.bincount(first).float().div(len(first)).sub(1 / 3).abs().max() < 0.14


def test_what_fills_no_batch_comes_last() -> None:
    targets = arranged("blocks", [labels(7), labels(9)], batch_size=4)[:, 0].tolist()
    assert sorted(targets[:12]) == [0] * 4 + [1] * 8
    assert targets[12:] == [0, 0, 0, 1]


# labels in runs


@pytest.mark.parametrize(
    ("domain", "expected"),
    [("photo", 69), ("art_painting", 86), ("cartoon", 106), ("sketch", 180)],
)
def test_runs_of_the_dirichlet_order_are_as_long_as_simulated_for_pacs(
    domain: str, expected: float
) -> None:
    part = labels(*PACS[domain])
    streams = [part[arranged("dirichlet", [part], seed)[:, 1]] for seed in range(20)]
    assert mean(map(run_length, streams)) == pytest.approx(expected, rel=0.15)
    distinct = [len(set(b.tolist())) for stream in streams for b in torch.split(stream, 20)]
    assert 1.05 < mean(distinct) < 1.35


def test_the_milder_the_setting_the_shorter_the_runs() -> None:
    part = labels(*PACS["photo"])

    def length(order: str, **given: Any) -> float:
        rows = (arranged(order, [part], seed, **given) for seed in range(5))
        return mean(run_length(part[r[:, 1]]) for r in rows)

    plain, inside = length("shuffled"), length("dirichlet", shuffle_inside=True)
    assert plain < 1.4
    assert 1.5 * plain < inside < length("dirichlet", beta=1.0) < length("dirichlet")
    assert length("slots") > 20
    assert length("slots") > 1.2 * length("slots", gamma=100.0)


def test_chunks_have_the_asked_number_of_images() -> None:
    from generalizeformer.data.orders import dirichlet
    from generalizeformer.data.orders._draws import by_label, joined, numpy_generator

    classes, smallest = by_label(labels(*PACS["photo"])), []
    for seed in range(30):
        draws = numpy_generator(Generator().manual_seed(seed))
        chunks = dirichlet._chunks(classes, draws, dirichlet.Config(minimum=60))
        smallest.append(min(len(joined(chunk)) for chunk in chunks))
        assert len(chunks) == 7
    assert min(smallest) >= 60


@pytest.mark.parametrize("minimum", [21, 1000])
def test_a_division_that_cannot_be_is_refused_without_a_draw(
    minimum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("generalizeformer.data.orders.dirichlet.REDRAWS", 0)
    message = (
        rf"60 images cannot make 3 chunks, one for each class, of at least {minimum}; lower minimum to 20 "
        "or less, nothing else helps"
    )
    with pytest.raises(DataError, match=message):
        arranged("dirichlet", [labels(20, 20, 20)], minimum=minimum)


def test_a_division_that_hardly_ever_comes_is_given_up() -> None:
    message = r"60 images of 3 classes gave no 3 chunks of at least 20 in 1,000 draws; lower min"
    with pytest.raises(DataError, match=message):
        arranged("dirichlet", [labels(13, 19, 28)], minimum=20)


def test_slots_keep_the_datasets_order_within_a_class() -> None:
    part = labels(30, 40, 50)
    rows = arranged("slots", [part])[:, 1]
    for label in range(3):
        mine = rows[part[rows] == label]
        assert torch.equal(mine, mine.sort().values)


def test_slots_are_no_more_than_asked_for() -> None:
    part = labels(30, 40, 50)
    assert run_length(part[arranged("slots", [part], most=1)[:, 1]]) == 40


@settings(deadline=None, max_examples=25)
@given(parts=few)
def test_classes_come_one_after_another(parts: list[Tensor]) -> None:
    rows = arranged("by_class", parts)
    for target, part in enumerate(parts):
        arrived = part[rows[rows[:, 0] == target, 1]]
        changes = int((arrived[1:] != arrived[:-1]).sum())
        assert changes == len(set(part.tolist())) - 1


# other class shares


@pytest.mark.parametrize("cap", [0.3, 0.6])
def test_no_class_has_more_than_the_cap_and_some_have_much(cap: float) -> None:
    part, largest = labels(*PACS["sketch"]), []
    for seed in range(20):
        arrived = part[arranged("imbalanced", [part], seed, cap=cap)[:, 1]]
        assert len(part) - 7 <= len(arrived) <= len(part)
        largest.append(max(Counter(arrived.tolist()).values()) / len(part))
        assert run_length(arrived) < 3
    assert max(largest) <= cap
    assert max(largest) > 0.8 * cap


def test_imbalanced_classes_may_also_come_one_after_another() -> None:
    part = labels(50, 50, 50, 50)
    arrived = part[arranged("imbalanced", [part], by_class=True)[:, 1]]
    assert int((arrived[1:] != arrived[:-1]).sum()) == 3


def test_a_cap_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(DataError, match=r"no draw for 1 classes .* cap of 0\.6 .*; raise cap"):
        arranged("imbalanced", [labels(9)])


def test_label_shift_shows_nearly_one_class_at_a_time() -> None:
    part = labels(*PACS["photo"])
    arrived = part[arranged("label_shift", [part])[:, 1]]
    assert len(arrived) == len(part)
    assert run_length(arrived) > 200
    # Every class is the major one equally long, however many images it has.
    assert {len(part) // 7, len(part) // 7 + 1} >= set(Counter(arrived.tolist()).values())


@pytest.mark.parametrize("ratio", [1.0, 6.0, 54.0])
def test_the_major_class_is_drawn_as_often_as_the_ratio_says(ratio: float) -> None:
    part = labels(*[800] * 7)
    arrived = part[arranged("label_shift", [part], ratio=ratio)[:, 1]]
    shares = [torch.bincount(block).max() / len(block) for block in torch.split(arrived, 800)]
    expected = ratio / (ratio + 6)
    assert mean(map(float, shares)) == pytest.approx(expected, abs=0.04)


def test_target_shift_repeats_no_image_and_moves_the_shares() -> None:
    part = labels(*PACS["sketch"])
    before = torch.bincount(part) / len(part)

    def moved(alpha: float) -> float:
        distances = []
        for seed in range(20):
            images = arranged("target_shift", [part], seed, alpha=alpha)[:, 1]
            assert len(set(images.tolist())) == len(images)
            after = torch.bincount(part[images], minlength=7) / len(images)
            distances.append(float((after - before).abs().sum()))
        return mean(distances)

    assert moved(1000.0) < 0.1 < 2 * moved(100.0) < moved(1.0) < moved(0.3)


def test_target_shift_takes_as_many_images_as_the_shares_allow() -> None:
    part = labels(30, 60, 90)
    for seed in range(20):
        images = arranged("target_shift", [part], seed)[:, 1]
        taken = torch.bincount(part[images], minlength=3) / torch.tensor([30, 60, 90])
        assert float(taken.max()) == 1.0  # a class that ran out


# parts, passes and visits


@settings(deadline=None, max_examples=25)
@given(parts=few, share=st.sampled_from([0.1, 0.5, 1.0]))
def test_a_mixture_keeps_its_share_of_every_target(parts: list[Tensor], share: float) -> None:
    rows = arranged("mixture", parts, share=share).tolist()
    assert len({tuple(row) for row in rows}) == len(rows)
    for target, part in enumerate(parts):
        assert [t for t, _ in rows].count(target) == max(1, round(share * len(part)))


@settings(deadline=None, max_examples=25)
@given(
    count=st.integers(1, 50),
    targets=st.integers(1, 9),
    back=st.booleans(),
    jitter=st.sampled_from([0.0, 0.1]),
)
def test_one_pass_shows_every_image_under_one_target(
    count: int, targets: int, back: bool, jitter: float
) -> None:
    rows = arranged("one_pass", [labels(count)] * targets, there_and_back=back, jitter=jitter)
    assert sorted(rows[:, 1].tolist()) == list(range(count))
    assert rows[:, 0].min() >= 0
    assert rows[:, 0].max() < targets
    if not back and not jitter:
        assert rows[:, 0].tolist() == [i * targets // count for i in range(count)]
    if back and not jitter:
        assert rows[:, 0].tolist() == rows[:, 0].tolist()[::-1]


def test_one_pass_there_and_back_reaches_every_target() -> None:
    steps = arranged("one_pass", [labels(100)] * 5, there_and_back=True)[:, 0]
    assert steps[:50].tolist() == sorted(steps[:50].tolist())
    assert set(steps[:50].tolist()) == set(range(5))


def test_jitter_moves_an_image_by_no_more_than_asked() -> None:
    targets, count = 90, 900
    steps = arranged("one_pass", [labels(count)] * targets, jitter=5 / 90)[:, 0]
    off = steps - torch.arange(count) * targets // count
    assert off.abs().max() <= 6
    assert off.min() < -3
    assert off.max() > 3


def test_one_pass_over_two_domains_is_refused() -> None:
    with pytest.raises(DataError, match="one_pass: the targets are of different domains; name one"):
        arranged("one_pass", [labels(5), labels(6)])


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    visits=st.integers(1, 4),
    per_visit=st.integers(1, 30),
)
def test_targets_recur_and_no_image_comes_twice_before_all_came_once(
    sizes: list[int], visits: int, per_visit: int
) -> None:
    parts = [labels(size) for size in sizes]
    rows = arranged("recurring", parts, visits=visits, per_visit=per_visit)
    in_turn = [t for _ in range(visits) for t in range(len(sizes)) for _ in range(per_visit)]
    assert rows[:, 0].tolist() == in_turn
    for target, size in enumerate(sizes):
        images = rows[rows[:, 0] == target, 1]
        for piece in torch.split(images, size):
            assert len(set(piece.tolist())) == len(piece)


@pytest.mark.parametrize(
    ("order", "setting", "message"),
    [
        ("dirichlet", {"beta": -1}, "dirichlet: beta is -1.0; it must be above 0"),
        ("dirichlet", {"minimum": -1}, "dirichlet: minimum is -1; it must be 0 or more"),
        ("slots", {"gamma": 0}, "slots: gamma is 0.0; it must be above 0"),
        ("slots", {"most": 0}, "slots: most is 0; it must be at least 1"),
        ("imbalanced", {"exponent": 1}, "exponent is 1.0; it must be above 1"),
        ("imbalanced", {"cap": 1.5}, "cap is 1.5; it must be above 0 and at most 1"),
        ("label_shift", {"ratio": 0}, "ratio is 0.0; it must be above 0"),
        ("mixture", {"share": 0}, "share is 0.0; it must be above 0 and at most 1"),
        ("one_pass", {"jitter": -1}, "jitter is -1.0; it must be 0 or more"),
        ("recurring", {"visits": 0}, "visits is 0; it must be at least 1"),
        ("recurring", {"per_visit": 0}, "per_visit is 0; it must be at least 1"),
        ("target_shift", {"alpha": 0}, "alpha is 0.0; it must be above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    order: str, setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        arranged(order, [labels(5)], **setting)


NUMBERS = [
    (order, field.name)
    for order in ALL
    for field in fields(catalog.load(ORDERS, order).Config)
    if field.type in (int, float)
]


@pytest.mark.parametrize(("order", "field"), NUMBERS)
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e308, 10**300, 10_000_001])
def test_settings_that_no_one_can_mean_are_refused(order: str, field: str, value: float) -> None:
    with pytest.raises(DataError, match=rf"^{order}: {field} is .*; it must be "):
        catalog.load(ORDERS, order).Config(**{field: value})


def test_visits_that_take_forever_together_are_refused() -> None:
    message = "visits x per_visit is 1000000000000; it must be at least 1, and at most 10,000,000"
    with pytest.raises(DataError, match=message):  # nothing is drawn: it would fill the memory
        catalog.load(ORDERS, "recurring").Config(visits=10**6, per_visit=10**6)
