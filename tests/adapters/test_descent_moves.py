"""Methods that follow a loss downhill: what each of them moves, and what stays."""

from typing import Any

import pytest
import torch
from descending import HARNESS, assert_near, eager, every, moved, network
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.adapters import pl, pl_c, shot, shot_im, tent_bn, tent_c
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import ImageError


@every([pl, shot, shot_im])
def test_moves_the_network_but_no_statistics(
    method: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = method.build(source, eager(method))
    adapter.step(images)
    names = {name for name, _ in backbone.named_parameters()}
    fixed = set() if method is pl else {"classifier.weight", "classifier.bias"}
    assert moved(adapter, backbone) == names - fixed
    now = dict(adapter.backbone.named_buffers())
    assert all(torch.equal(value, now[name]) for name, value in backbone.named_buffers())
    assert not any(module.training for module in adapter.backbone.modules())


@every([tent_c, pl_c])
def test_moves_the_classifier_on_features_that_stay(
    method: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter: Any = method.build(source, eager(method, learning_rate=0.01))
    adapter.step(images)
    features = backbone.blocks(images).mean((2, 3)).detach()
    weight, bias = adapter.head.weight, adapter.head.bias
    assert not torch.equal(weight, backbone.classifier.weight)
    assert not torch.equal(bias, backbone.classifier.bias)
    assert_near(adapter.predict(images), F.linear(features, weight, bias).detach(), 1e-10)


def test_tent_bn_without_learning_standardises_the_features_of_a_batch(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = tent_bn.build(source, tent_bn.Config(learning_rate=0.0))
    for batch in images.split(8):
        features = backbone.blocks(batch).mean((2, 3)).detach()
        variance, mean = torch.var_mean(features, 0, correction=0)
        expected = backbone.classifier((features - mean) / (variance + 1e-5).sqrt()).detach()
        assert_near(adapter.step(batch), expected, 1e-10)
        assert (expected - backbone(batch)).abs().max() > 1e-2


def test_tent_bn_moves_the_new_layer_only(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = tent_bn.TentBN(source, tent_bn.Config(learning_rate=0.01))
    adapter.step(images)
    assert not torch.equal(adapter.norm.weight, torch.ones(12).double())
    assert not torch.equal(adapter.norm.bias, torch.zeros(12).double())
    assert torch.equal(adapter.head.weight, backbone.classifier.weight)
    assert not list(adapter.norm.buffers())


def test_tent_bn_refuses_a_single_image_and_learns_nothing_from_it(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = tent_bn.build(source, tent_bn.Config(learning_rate=0.01))
    adapter.step(images)
    before = adapter.predict(images)
    for call in (adapter.step, adapter.predict):
        with pytest.raises(
            ImageError, match=r"^tent_bn: 1 image has no .*; give at least 2 images"
        ):
            call(images[:1])
    assert torch.equal(adapter.predict(images), before)
    assert adapter.step(images[:2]).isfinite().all()


@every([tent_bn, tent_c, pl_c])
def test_features_are_computed_once_per_batch(
    method: Any, source: GeneralizeFormer, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = method.build(source, method.Config(steps=3))
    run, calls = source.network.run, list[int]()

    def counted(batch: Tensor, *rest: Any) -> Any:
        calls.append(len(batch))
        return run(batch, *rest)

    monkeypatch.setattr(source.network, "run", counted)
    for batch in images.split(8):
        adapter.step(batch)
    assert calls == [8, 8, 8]


@every(HARNESS)
def test_serves_a_model_without_batch_norm(method: Any, images: Tensor) -> None:
    model = network(nn.Dropout(0.5))
    adapter = method.build(model, eager(method, learning_rate=0.01))
    before = adapter.predict(images)
    assert adapter.step(images).isfinite().all()
    assert torch.equal(adapter.predict(images), adapter.predict(images))  # dropout is off
    assert not torch.allclose(adapter.predict(images), before)


@every([pl, shot])
def test_a_weight_used_by_two_layers_moves_once(method: Any, images: Tensor) -> None:
    model = network(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model.backbone[4].weight = model.backbone[6].weight
    adapter = method.build(model, method.Config(learning_rate=0.01, threshold=0.0))
    adapter.step(images)
    weight = adapter.backbone[4].weight
    assert adapter.backbone[6].weight is weight
    change = (weight - model.backbone[4].weight).abs()
    assert_near(
        change.max(), torch.tensor(0.01).double(), 1e-4
    )  # Adam's first step, not two of them


def test_shot_keeps_a_weight_that_the_classifier_shares(images: Tensor) -> None:
    model = network(nn.Linear(8, 8), nn.ReLU(), classes=8)
    model.backbone[4].weight = model.backbone[6].weight
    adapter: Any = shot.build(model, shot.Config(learning_rate=0.01))
    adapter.step(images)
    assert torch.equal(adapter.backbone[4].weight, model.backbone[4].weight)
    assert not torch.equal(adapter.backbone[4].bias, model.backbone[4].bias)
