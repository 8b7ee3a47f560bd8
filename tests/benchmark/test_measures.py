import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.benchmark.measures import calibration_error, percent_by


def by_hand(right: list[bool], sure: list[float]) -> float:
    """The definition, bin by bin: (0, 1/15], (1/15, 2/15], …"""
    error = 0.0
    for number in range(15):
        low, high = number / 15, (number + 1) / 15
        inside = [i for i, p in enumerate(sure) if low < p <= high or (number == 0 and p == 0)]
        if inside:
            accuracy = sum(right[i] for i in inside) / len(inside)
            confidence = sum(sure[i] for i in inside) / len(inside)
            error += len(inside) / len(sure) * abs(accuracy - confidence)
    return 100 * error


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=40))
def test_the_calibration_error_is_the_published_one(answers: list[tuple[bool, float]]) -> None:
    right, sure = [r for r, _ in answers], [p for _, p in answers]
    got = calibration_error(torch.tensor(right), torch.tensor(sure, dtype=torch.float64))
    assert got == pytest.approx(by_hand(right, sure), abs=1e-9)


@pytest.mark.parametrize(("sure", "expected"), [(1.0, 25.0), (0.75, 0.0), (0.5, 25.0)])
def test_whoever_is_as_sure_as_right_is_calibrated(sure: float, expected: float) -> None:
    right = torch.tensor([True, True, True, False])
    got = calibration_error(right, torch.full((4,), sure, dtype=torch.float64))
    assert got == pytest.approx(expected)


def test_errors_in_one_direction_do_not_make_up_for_others_in_another_bin() -> None:
    sure = torch.tensor([0.99, 0.01], dtype=torch.float64)
    assert calibration_error(torch.tensor([False, True]), sure) == pytest.approx(99)


def test_answers_that_are_no_numbers_have_no_calibration() -> None:
    sure = torch.tensor([torch.nan, 0.5], dtype=torch.float64)
    assert math.isnan(calibration_error(torch.tensor([False, True]), sure))


def test_kinds_of_one_name_count_together_and_empty_ones_not_at_all() -> None:
    right = torch.tensor([True, False, True, True])
    kinds = torch.tensor([0, 2, 2, 1])
    assert percent_by(right, kinds, ("a", "b", "a", "c")) == {"a": pytest.approx(200 / 3), "b": 100}
