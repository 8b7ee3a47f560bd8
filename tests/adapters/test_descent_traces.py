"""Methods that follow a loss downhill, against recorded numbers."""

from typing import Any

import pytest
from descending import assert_near, every, name_of
from recordings import assert_agree, recorded, stream_of
from torch import Tensor, nn

from generalizeformer.adapters import pl, pl_c, shot, shot_im, tent, tent_bn, tent_c
from generalizeformer.adapters._descent import HeadDescent
from generalizeformer.core.generalizeformer import GeneralizeFormer


def values_of(adapter: Any) -> dict[str, Tensor]:
    """Everything that could have moved, by the names of the recorded network."""
    if not isinstance(adapter, HeadDescent):
        return dict(adapter.backbone.named_parameters())
    parts = {"fc": adapter.head, "prebn": getattr(adapter, "norm", nn.Identity())}
    return {
        f"{at}.{n}": value for at, part in parts.items() for n, value in part.named_parameters()
    }


@pytest.mark.parametrize(
    ("method", "trace", "variant", "settings"),
    [
        (tent, "tent_full_t3a", "gamma1", {}),
        (tent, "tent_full_t3a", "gamma3_alpha10", {"learning_rate": 1e-2, "steps": 3}),
        (tent, "tent_full_t3a", "gamma1_bs1", {}),
        (tent_bn, "tent_prebn", "gamma1", {}),
        (tent_bn, "tent_prebn", "gamma3_alpha10", {"learning_rate": 1e-2, "steps": 3}),
        (tent_c, "tent_clf", "gamma1", {}),
        (tent_c, "tent_clf", "gamma3_alpha10", {"learning_rate": 1e-2, "steps": 3}),
        (tent_c, "tent_clf", "gamma1_bs1", {}),
        (pl, "pl", "gamma1", {}),
        (pl, "pl", "gamma3", {"steps": 3}),
        (pl, "pl", "beta0", {"threshold": 0.0}),
        (pl, "pl", "gamma1_bs1", {}),
        (pl_c, "pl_clf", "gamma1", {}),
        (pl_c, "pl_clf", "gamma3_alpha10", {"learning_rate": 1e-2, "steps": 3}),
        (pl_c, "pl_clf", "gamma1_bs1", {"learning_rate": 1e-2}),
        (shot, "shot", "gamma1", {}),
        (shot, "shot", "gamma3", {"steps": 3}),
        (shot, "shot", "gamma1_theta1", {"label_weight": 1.0}),
        (shot_im, "shot_im", "gamma1", {}),
        (shot_im, "shot_im", "gamma3", {"steps": 3}),
    ],
    ids=name_of,
)
def test_agrees_with_the_published_implementation(
    toy: GeneralizeFormer, method: Any, trace: str, variant: str, settings: dict[str, Any]
) -> None:
    assert_follows(method, toy, trace, variant, settings, atol=1e-8)


@every([shot, shot_im])
def test_agrees_on_single_images_where_the_loss_cancels_up_to_rounding(
    toy: GeneralizeFormer, method: Any
) -> None:
    assert_follows(method, toy, str(name_of(method)), "gamma1_bs1", {}, atol=1e-6)


def assert_follows(
    method: Any,
    toy: GeneralizeFormer,
    trace: str,
    variant: str,
    settings: dict[str, Any],
    atol: float,
) -> None:
    expected = {
        key.removeprefix(f"{variant}/"): value
        for key, value in recorded(trace).items()
        if key.startswith(f"{variant}/")
    }
    adapter = method.build(toy, method.Config(**{"learning_rate": 1e-3, **settings}))
    for number, batch in enumerate(stream_of(variant)):
        assert_near(adapter.step(batch), expected["logits"][number], atol)
        for key, value in expected.items():
            if key.startswith("params_per_batch/"):
                assert_near(values_of(adapter)[key.rpartition("/")[2]], value[number], atol)
    for key, value in expected.items():
        if key.startswith("params/"):
            assert_near(values_of(adapter)[key.rpartition("/")[2]], value, atol)
    assert len(expected) >= 3


def test_tent_of_the_harness_is_tent() -> None:
    assert_agree(recorded("tent_full_t3a")["gamma1/logits"], recorded("tent")["online/logits"])
