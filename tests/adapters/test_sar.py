"""SAR: what was recorded, the gradient from uphill, and how it recovers."""

import math

import pytest
import torch
from filtering import (
    PARTS,
    VISIBLE,
    apart,
    assert_close,
    assert_parameters,
    assert_same_parameters,
    distance,
    one_sgd_step,
)
from recordings import assert_agree, recorded, stream_of
from torch import Tensor, nn

from generalizeformer.adapters import sar
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy


@pytest.mark.parametrize(
    ("variant", "margin", "scale"),
    [("default", 0.4, 1.0), ("bs1", 1.6 / math.log(5), 1.0), ("recovery", 0.4, 1.5)],
)
def test_sar_gives_the_recorded_numbers(
    toy: GeneralizeFormer, variant: str, margin: float, scale: float
) -> None:
    trace = recorded("sar")
    with torch.no_grad():
        for part in ("fc.weight", "fc.bias"):
            toy.backbone.get_parameter(part).mul_(scale)
    adapter = sar.SAR(toy, sar.Config(learning_rate=VISIBLE, entropy_margin=margin))
    for number, batch in enumerate(stream_of(variant)):
        assert_agree(adapter.step(batch), trace[f"{variant}/logits"][number])
        assert_parameters(adapter, trace, variant, number)
        average = math.nan if adapter.average is None else adapter.average
        assert average == pytest.approx(trace[f"{variant}/ema"][number].item(), 0, 1e-8, True)
    for part in PARTS:
        state = adapter.optimizer.state[adapter.backbone.get_parameter(part)]
        assert_agree(state["momentum_buffer"], trace[f"{variant}/momentum/{part}"])


def sure_of_all(logits: Tensor) -> Tensor:
    return per_image_entropy(logits).mean()


def test_sar_that_does_not_climb_is_gradient_descent(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = sar.Config(learning_rate=0.1, entropy_margin=1.0, radius=0.0, recovery=0.0)
    adapter = sar.SAR(source, config)
    adapter.step(images)
    expected = one_sgd_step(backbone, images, lambda _, logits: sure_of_all(logits), 0.1)
    assert_same_parameters(adapter, expected)


def test_sar_descends_by_the_gradient_from_uphill(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = sar.Config(learning_rate=0.1, entropy_margin=1.0, radius=0.3, recovery=0.0)
    adapter = sar.SAR(source, config)
    adapter.step(images)
    flat = one_sgd_step(backbone, images, lambda _, logits: sure_of_all(logits), 1.0)
    length = apart(flat, backbone)
    uphill = one_sgd_step(
        backbone, images, lambda _, logits: sure_of_all(logits), -0.3 / (length + 1e-12)
    )
    further = one_sgd_step(uphill, images, lambda _, logits: sure_of_all(logits), 0.1)
    for name, value in adapter.backbone.named_parameters():
        start = backbone.get_parameter(name) - uphill.get_parameter(name)
        assert_close(value.detach(), (further.get_parameter(name) + start).detach())


COLLAPSED = sar.Config(learning_rate=0.05, entropy_margin=1.0, recovery=9.0)


def test_sar_recovery_keeps_momentum_and_average_as_published(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = sar.SAR(source, COLLAPSED)
    for batch in images.split(8):
        adapter.step(batch)
        assert distance(adapter, backbone) == 0
        assert adapter.average is not None  # so that it recovers again after the next batch
    momentum = [adapter.optimizer.state[value]["momentum_buffer"] for value in adapter.moving]
    assert all(value.any() for value in momentum)


def test_sar_can_recover_as_the_paper_means_it(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = sar.Config(learning_rate=0.05, entropy_margin=1.0, recovery=9.0, full_recovery=True)
    adapter = sar.SAR(source, config)
    adapter.step(images)
    assert distance(adapter, backbone) == 0
    assert adapter.average is None
    assert not adapter.optimizer.state


def test_sar_steps_on_its_momentum_where_no_image_is_sure_as_published(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = sar.SAR(source, sar.Config(learning_rate=0.1, entropy_margin=1.0, recovery=0.0))
    adapter.step(images)
    here, average = adapter.values(), adapter.average
    momentum = [adapter.optimizer.state[v]["momentum_buffer"].clone() for v in adapter.moving]
    adapter.margin = 0.0
    adapter.step(images)
    for before, speed, after in zip(here, momentum, adapter.values(), strict=True):
        assert_close(after, before - 0.1 * 0.9 * speed)
    assert adapter.average == average
