"""BN-adapt, and the layer with mixed statistics that several methods share."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import assert_agree, recorded, stream_of
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from generalizeformer.adapters import alpha_bn, batchnorm, tent
from generalizeformer.adapters._batch_norm import replace_batch_norms
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, SlotError, UserError


def assert_close(got: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def net(norm: nn.Module | None, *last: nn.Module) -> GeneralizeFormer:
    """conv, the norm layer if any, pooling, whatever comes last, a classifier."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(3, 8, 3), *([] if norm is None else [norm]), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *last, nn.Linear(8, 5)]
    backbone = nn.Sequential(*layers, *head).double()
    return GeneralizeFormer(backbone, Config(selection=Selection(kinds=("classifier",))))


@torch.no_grad()
def with_prior(backbone: nn.Module, images: Tensor, prior: float) -> Tensor:
    """An independent BN-adapt: each layer is given its statistics just before it runs."""
    network, own = copy.deepcopy(backbone).eval(), len(images) / (prior + len(images))

    def mix(layer: Any, inputs: tuple[Tensor]) -> None:
        variance, mean = torch.var_mean(inputs[0], (0, 2, 3), correction=0)
        layer.running_mean = (1 - own) * layer.running_mean + own * mean
        layer.running_var = (1 - own) * layer.running_var + own * variance

    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_pre_hook(mix)
    result: Tensor = network(images)
    return result


@pytest.mark.parametrize("variant", ["default", "reset_stats", "no_stats", "default_bs1"])
def test_the_batch_alone_is_what_was_recorded_whatever_became_of_running_averages(
    toy: GeneralizeFormer, variant: str
) -> None:
    adapter = batchnorm.build(toy, batchnorm.Config())
    got = torch.stack([adapter.step(batch) for batch in stream_of(variant)])
    assert_agree(got, recorded("bn_adapt")[f"{variant}/logits"])


def test_the_whole_stream_is_answered_in_one_call(toy: GeneralizeFormer) -> None:
    adapter, stream = batchnorm.build(toy, batchnorm.Config()), stream_of("default")
    groups = torch.arange(len(stream)).repeat_interleave(stream.shape[1])
    got = adapter.predict_groups(stream.flatten(0, 1), groups)
    assert_agree(got, recorded("bn_adapt")["default/logits"].flatten(0, 1))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 24), st.floats(0, 100))
def test_source_and_batch_are_weighed_by_their_numbers_of_images(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor, count: int, prior: float
) -> None:
    adapter = batchnorm.build(source, batchnorm.Config(prior=prior))
    assert_close(adapter.step(images[:count]), with_prior(backbone, images[:count], prior))


def test_groups_of_different_sizes_have_weights_of_their_own(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = batchnorm.build(source, batchnorm.Config(prior=16.0))
    groups = torch.tensor([0] * 20 + [1] * 4)
    got = adapter.predict_groups(images, groups)
    assert_close(got[:20], with_prior(backbone, images[:20], 16))
    assert_close(got[20:], with_prior(backbone, images[20:], 16))


def test_without_a_prior_it_is_tent_that_does_not_learn(
    source: GeneralizeFormer, images: Tensor
) -> None:
    expected = tent.build(source, tent.Config(learning_rate=0.0)).step(images)
    assert_close(batchnorm.build(source, batchnorm.Config()).step(images), expected)


def test_a_boundless_prior_is_the_source(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = batchnorm.build(source, batchnorm.Config(prior=1e15))
    assert_close(adapter.step(images), backbone(images).detach())


def test_it_differs_from_alpha_bn_by_the_unbiased_variance_only() -> None:
    model, images = net(nn.BatchNorm2d(8)), torch.randn(4, 3, 3, 3).double()  # 4 values a channel
    biased = batchnorm.build(model, batchnorm.Config(prior=4.0)).step(images)
    unbiased = alpha_bn.build(model, alpha_bn.Config(batch_weight=0.5)).step(images)
    assert (biased - unbiased).abs().max() > 1e-4
    many = torch.randn(4, 3, 64, 64).double()
    biased = batchnorm.build(model, batchnorm.Config(prior=4.0)).step(many)
    assert_close(alpha_bn.build(model, alpha_bn.Config(batch_weight=0.5)).step(many), biased, 1e-3)


def test_frozen_layers_are_served(images: Tensor) -> None:
    expected = batchnorm.build(net(nn.BatchNorm2d(8)), batchnorm.Config(prior=3.0)).step(images)
    adapter = batchnorm.build(net(FrozenBatchNorm2d(8)), batchnorm.Config(prior=3.0))
    assert_close(adapter.step(images), expected)


def test_half_precision_is_answered_in_half_precision(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    expected = batchnorm.build(source, batchnorm.Config(prior=3.0)).step(images)
    backbone.bfloat16()
    got = batchnorm.build(source, batchnorm.Config(prior=3.0)).step(images.bfloat16())
    assert got.dtype == torch.bfloat16
    assert_close(got.double(), expected, 0.5)
    assert (got.double() - expected).abs().mean() < 0.1


def test_a_layer_used_in_two_places_is_replaced_in_both() -> None:
    norm = nn.BatchNorm2d(3)
    model = nn.Sequential(norm, nn.Sequential(nn.ReLU(), norm))
    made = replace_batch_norms(model, lambda name, layer: nn.Identity())
    assert len(made) == 1
    assert model[0] is model[1][1] is made[0]


@pytest.mark.parametrize("prior", [-1.0, float("nan"), float("inf")])
def test_a_prior_that_is_no_number_of_images_is_refused(prior: float) -> None:
    with pytest.raises(UserError, match=rf"^batchnorm: prior is {prior}; give a number of images"):
        batchnorm.Config(prior=prior)


def test_a_model_without_batch_norm_is_refused() -> None:
    with pytest.raises(SlotError, match=r"^batchnorm: Sequential has no BatchNorm .*; try t3a or"):
        batchnorm.build(net(nn.GroupNorm(2, 8)), batchnorm.Config())


def test_one_value_per_channel_is_refused(images: Tensor) -> None:
    adapter = batchnorm.build(net(None, nn.BatchNorm1d(8)), batchnorm.Config(prior=4.0))
    with pytest.raises(
        ImageError, match=r"^batchnorm: 4 sees one value .*; give at least 2 images"
    ):
        adapter.step(images[:1])
    assert adapter.step(images[:2]).isfinite().all()
