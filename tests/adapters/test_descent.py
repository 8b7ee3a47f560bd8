"""Methods that follow a loss downhill: the laws of all, and the settings they refuse."""

import itertools
from typing import Any

import pytest
import torch
from descending import HARNESS, assert_near, eager, every, name_of
from torch import Tensor

from generalizeformer.adapters import pl, pl_c, shot, tent_bn, tent_c
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.errors import UserError


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *[(method, {"learning_rate": 0.0, "steps": 2}) for method in (tent_c, *HARNESS[2:])],
        *[(method, {"learning_rate": 0.1, "threshold": 1.0}) for method in (pl, pl_c)],
    ],
    ids=name_of,
)
def test_without_learning_it_stays_the_source(
    method: Any, settings: dict[str, Any], source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = method.build(source, method.Config(**settings))
    for batch in images.split(8):
        assert_near(adapter.step(batch), source.backbone(batch).detach(), 1e-10)


@every(HARNESS)
def test_answers_its_first_batch_before_learning(
    method: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    slow, fast = (method.build(source, eager(method, learning_rate=r)) for r in (1e-4, 1e-2))
    assert torch.equal(slow.step(images[:8]), fast.step(images[:8]))
    assert not torch.allclose(slow.step(images[8:]), fast.step(images[8:]))


@every(HARNESS)
def test_several_steps_are_the_batch_shown_several_times(
    method: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    one, three = (method.build(source, eager(method, steps=steps)) for steps in (1, 3))
    answers = [one.step(images[:8]) for _ in range(3)]
    assert_near(three.step(images[:8]), answers[-1], 1e-12)
    assert_near(three.predict(images), one.predict(images), 1e-12)


@every([tent_bn, tent_c])
def test_lowers_the_entropy_of_a_fixed_batch(
    method: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = method.build(source, method.Config(learning_rate=1e-3))
    entropies = [per_image_entropy(adapter.step(images)).mean() for _ in range(20)]
    assert all(later < earlier for earlier, later in itertools.pairwise(entropies))


@every(HARNESS)
def test_the_grid_is_the_harness_one(method: Any) -> None:
    rates = sorted({entry["learning_rate"] for entry in method.GRID})
    assert rates == [5e-6, 5e-5, 5e-4]
    assert {entry["steps"] for entry in method.GRID} == {1, 3}
    assert len(method.GRID) == 6
    assert method.Config(**method.GRID[0]) == method.Config()


# Errors


@every(HARNESS)
def test_rates_and_steps_that_cannot_be_used_are_refused(method: Any) -> None:
    for rate in (-1.0, float("nan"), float("inf")):
        expected = rf"^{name_of(method)}: learning_rate is {rate}; give a number of at least 0$"
        with pytest.raises(UserError, match=expected):
            method.Config(learning_rate=rate)
    with pytest.raises(UserError, match=rf"^{name_of(method)}: steps is 0; give at least 1$"):
        method.Config(steps=0)


@every([pl, pl_c, shot])
@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_a_threshold_is_a_probability(method: Any, threshold: float) -> None:
    expected = rf"^{name_of(method)}: threshold is {threshold}; it is a probability, from 0 \(every"
    with pytest.raises(UserError, match=expected):
        method.Config(threshold=threshold)


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_shot_refuses_a_weight_below_zero(weight: float) -> None:
    with pytest.raises(UserError, match=rf"^shot: label_weight is {weight}; give a number of at"):
        shot.Config(label_weight=weight)
