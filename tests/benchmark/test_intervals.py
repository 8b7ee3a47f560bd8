"""Student's t against its printed table, and what intervals are."""

from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.benchmark.intervals import interval, standard_error, t_point

VALUES = st.lists(st.floats(-50, 50), min_size=2, max_size=12)


@pytest.mark.parametrize(
    ("degrees", "point"),
    [(1, 12.706), (10, 2.228), (11, 2.201), (12, 2.179), (20, 2.086), (30, 2.042), (120, 1.980)],
)
def test_points_are_those_of_the_printed_table(degrees: int, point: float) -> None:
    assert t_point(degrees) == pytest.approx(point, abs=6e-4)


def test_points_fall_towards_the_normal_distributions() -> None:
    points = [t_point(degrees) for degrees in range(1, 400)]
    assert points == sorted(points, reverse=True)
    assert t_point(10**6) == pytest.approx(1.959964, abs=1e-5)


def test_an_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, three values: 4.303 / √3 either way.
    found = interval([1.0, 2.0, 3.0])
    assert found == pytest.approx((2.0, 2.0 - 2.4843, 2.0 + 2.4843), abs=1e-3)
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(0.57735, abs=1e-5)


def test_one_value_tells_of_no_spread() -> None:
    assert interval([1.0]) is interval([]) is standard_error([1.0]) is None


@settings(max_examples=25, deadline=None)
@given(VALUES, st.floats(-20, 20))
def test_an_interval_lies_around_the_mean_and_moves_with_it(values: list[float], by: float) -> None:
    one, moved = interval(values), interval([value + by for value in values])
    assert one is not None
    assert moved is not None
    assert one.mean == mean(values)
    assert one.high - one.mean == pytest.approx(one.mean - one.low, abs=1e-9)
    assert moved == pytest.approx(tuple(end + by for end in one), abs=1e-6)
