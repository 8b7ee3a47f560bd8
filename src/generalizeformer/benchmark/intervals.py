"""How far a mean can be trusted: its standard error, and Student's 95 % interval of paired differences."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist, mean, stdev
from typing import NamedTuple

# The two-sided 95 % points of Student's t for 1 to 10 degrees of freedom.
POINTS = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Interval(NamedTuple):
    """A mean, and the ends between which the true one lies in 95 of 100 cases."""

    mean: float
    low: float
    high: float


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; None of a single value, which has no spread."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None


def interval(values: Sequence[float]) -> Interval | None:
    """The mean of independent values and its interval; None where fewer than two tell of no spread."""
    error = standard_error(values)
    if error is None:
        return None
    middle, reach = mean(values), t_point(len(values) - 1) * error
    return Interval(middle, middle - reach, middle + reach)


def t_point(degrees: int) -> float:
    """The two-sided 95 % point of Student's t: a table, then its expansion around the normal one's."""
    if degrees <= len(POINTS):
        return POINTS[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
