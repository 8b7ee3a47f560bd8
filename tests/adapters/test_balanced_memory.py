"""RoTTA's memory: bounded, balanced, and which image has to go."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.adapters._balanced_memory import BalancedMemory


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
