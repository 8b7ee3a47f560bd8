"""Answers held against the truth → numbers. Knows which answers were right, and how sure; no label, no logit."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

BINS = 15


def percent(right: Bool[Tensor, " n"]) -> float:
    """The share of right answers."""
    return 100 * int(right.sum()) / len(right)


def percent_by(
    right: Bool[Tensor, " n"], kinds: Int64[Tensor, " n"], names: Sequence[str]
) -> dict[str, float]:
    """Percent by name of the kind; kinds of one name count together, and a name without answers has no score."""
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    for kind, name in enumerate(names):
        parts[name].append(right[kinds == kind])
    joined = {name: torch.cat(found) for name, found in parts.items()}
    return {name: percent(part) for name, part in joined.items() if len(part)}


def calibration_error(right: Bool[Tensor, " n"], confidence: Float[Tensor, " n"]) -> float:
    """Expected calibration error in percent: how far confidence is from accuracy, by confidence.

    Guo et al., "On calibration of modern neural networks", ICML 2017, section 2: 15 bins of equal width over the
    probability of the answer; the mean of |accuracy - mean confidence| over bins, by their number of images. A
    probability on the border of two bins belongs to the lower one.
    """
    sure, hit = confidence.double(), right.double()
    borders = torch.arange(1, BINS, dtype=torch.float64) / BINS
    bins = torch.bucketize(sure, borders)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, hit - sure)
    return 100 * float(gaps.abs().sum()) / len(right)
