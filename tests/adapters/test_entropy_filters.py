"""Methods that minimise the entropy of some images only: what ETA, EATA, SAR and DeYO have in common."""

import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from filtering import assert_close, distance, net
from torch import Tensor, nn

from generalizeformer.adapters import deyo, eata, eta, sar, tent
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, SlotError, UserError

METHODS: list[Any] = [eta, eata, sar, deyo]

every_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__.split(".")[-1])


def eager(method: Any, **more: Any) -> Any:
    """Settings under which every image teaches."""
    also = {"threshold": -1.0} if method is deyo else {}
    return method.Config(**{"entropy_margin": 1.0} | also | more)


def unlearned(source: GeneralizeFormer, images: Tensor) -> Tensor:
    """Answers under the batch's statistics, before anything is learned."""
    return tent.build(source, tent.Config()).predict(images)


@every_method
def test_without_learning_they_are_batch_statistics(
    method: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = method.build(source, eager(method, learning_rate=0.0, steps=2))
    expected = tent.build(source, tent.Config(learning_rate=0.0))
    for batch in images.split(8):
        assert torch.equal(adapter.step(batch), expected.step(batch))


@every_method
def test_the_first_batch_is_answered_before_learning(
    method: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    slow, fast = (method.build(source, eager(method, learning_rate=rate)) for rate in (1e-4, 0.5))
    assert torch.equal(slow.step(images[:8]), fast.step(images[:8]))
    assert not torch.allclose(slow.step(images[8:]), fast.step(images[8:]))


@every_method
def test_nothing_moves_where_no_image_is_sure(
    method: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = method.build(source, eager(method, learning_rate=1.0, entropy_margin=0.0))
    for batch in images.split(8):
        adapter.step(batch)
    assert distance(adapter, backbone) == 0


@every_method
def test_only_affine_parts_below_what_is_frozen_move(
    method: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = eager(method, learning_rate=0.1, frozen=("blocks.1",))
    adapter = method.build(source, config)
    adapter.step(images)
    before = dict(backbone.named_parameters())
    moved = {n for n, v in adapter.backbone.named_parameters() if not torch.equal(v, before[n])}
    assert moved == {"blocks.0.1.weight", "blocks.0.1.bias"}
    assert not any("running" in name for name, _ in adapter.backbone.named_buffers())


@every_method
def test_episodic_batches_teach_nothing_to_each_other(
    method: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    config = eager(method, learning_rate=0.1, steps=2, episodic=True)
    adapter = method.build(source, config)
    alone = adapter.step(images[8:16])
    adapter.step(images[:8])
    assert torch.equal(adapter.step(images[8:16]), alone)


@every_method
def test_a_replay_after_learning_is_bit_identical_with_or_without_inference_mode(
    method: Any, source: GeneralizeFormer, images: Tensor
) -> None:
    config = eager(method, learning_rate=0.5, **({"threshold": 0.0} if method is deyo else {}))
    adapter = method.build(source, config)
    first = torch.cat([adapter.step(batch) for batch in images.split(8)])
    with torch.inference_mode():
        adapter.reset()
        again = torch.cat([adapter.step(batch.clone()) for batch in images.split(8)])
    assert torch.equal(first, again)
    assert not torch.allclose(first, torch.cat([unlearned(source, b) for b in images.split(8)]))


@every_method
def test_models_that_normalise_each_image_are_served(method: Any, images: Tensor) -> None:
    model = net(nn.LayerNorm(8))
    adapter = method.build(model, eager(method, learning_rate=0.5))
    assert_close(adapter.step(images), model.backbone.eval()(images).detach())
    adapter.step(images)
    moved = dict(adapter.backbone.named_parameters())
    same = {n for n, v in model.backbone.named_parameters() if torch.equal(v, moved[n])}
    assert set(moved) - same == {"4.weight", "4.bias"}


@every_method
def test_models_without_an_affine_norm_are_refused(method: Any) -> None:
    name = method.__name__.split(".")[-1]
    with pytest.raises(SlotError, match=rf"^{name}: the model has no normalisation layer .*; try"):
        method.build(net(), method.Config())


@pytest.mark.parametrize("method", [sar, deyo])
def test_the_last_stage_stays(method: Any) -> None:
    inside = nn.Sequential(OrderedDict(norm=nn.LayerNorm(8)))
    norms = {"layer3": nn.LayerNorm(8), "layer4": nn.LayerNorm(8), "block": inside}
    model = net(nn.Sequential(OrderedDict(**norms, norm=nn.LayerNorm(8))))
    model.backbone[4].double()  # type: ignore[operator, index]
    adapter = method.build(model, method.Config())
    moving = {n for n, v in adapter.backbone.named_parameters() if v.requires_grad}
    assert {name.rpartition(".")[0] for name in moving} == {"4.layer3", "4.block.norm", "4.norm"}
    frozen = method.Config(frozen=("layer", "norm"))
    with pytest.raises(SlotError, match=r"shift outside layer, norm, so there is nothing to adap"):
        method.build(model, frozen)


def test_a_last_norm_of_the_whole_model_stays() -> None:
    model = net()
    backbone: Any = nn.Sequential(OrderedDict(body=model.backbone[:4], norm=nn.LayerNorm(8)))  # type: ignore[index]
    backbone.add_module("between", nn.LayerNorm(8))
    backbone.add_module("fc", nn.Linear(8, 5))
    selection = Config(selection=Selection(kinds=("classifier",)))
    adapter = sar.SAR(GeneralizeFormer(backbone.double(), selection), sar.Config())
    moving = {n for n, v in adapter.backbone.named_parameters() if v.requires_grad}
    assert moving == {"between.weight", "between.bias"}


@every_method
def test_one_image_is_refused_where_a_layer_sees_one_value_per_channel(
    method: Any, images: Tensor
) -> None:
    adapter = method.build(net(nn.BatchNorm1d(8)), method.Config())
    name = method.__name__.split(".")[-1]
    for call in (adapter.step, adapter.predict):
        with pytest.raises(ImageError, match=rf"^{name}: 1 image leaves .*at least 2"):
            call(images[:1])
        assert call(images[:2]).isfinite().all()


# Settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eta.Config(learning_rate=-1.0), "eta: learning_rate is -1.0; give a number of at"),
        (lambda: eata.Config(momentum=1.0), "eata: momentum is 1.0; give a number from 0 to below"),
        (lambda: sar.Config(steps=0), "sar: steps is 0; give at least 1"),
        (
            lambda: deyo.Config(entropy_margin=math.nan),
            "deyo: entropy_margin is nan; it is a share",
        ),
        (lambda: eta.Config(redundancy_margin=-1.0), "eta: redundancy_margin is -1.0; it is a cos"),
        (lambda: eata.Config(fisher_alpha=-1.0), "eata: fisher_alpha is -1.0; give a number of at"),
        (lambda: eata.Config(fisher_images=-1), "eata: fisher_images is -1; give at least 0"),
        (lambda: sar.Config(radius=-1.0), "sar: radius is -1.0; give a number of at least 0"),
        (lambda: sar.Config(recovery=math.inf), "sar: recovery is inf; give a number of at least"),
        (lambda: deyo.Config(weight_margin=-1.0), "deyo: weight_margin is -1.0; it is a share of"),
        (lambda: deyo.Config(threshold=2.0), "deyo: threshold is 2.0; it is a difference of prob"),
        (lambda: deyo.Config(patches=0), "deyo: patches is 0; give at least 1"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        make()


def test_defaults_are_the_published_ones() -> None:
    for method in METHODS:
        config = method.Config()
        assert (config.learning_rate, config.momentum, config.steps) == (2.5e-4, 0.9, 1)
        assert config.entropy_margin == (0.5 if method is deyo else 0.4)
    assert (eata.Config().fisher_alpha, eata.Config().fisher_images) == (2000.0, 2000)
    assert eata.GRID[1] == eta.GRID[1] | {"fisher_alpha": 1.0}
    assert (sar.Config().radius, sar.Config().recovery) == (0.05, 0.2)
    assert [entry["threshold"] for entry in deyo.GRID] == [0.2, 0.3, 0.5]
    assert (deyo.Config().weight_margin, deyo.Config().patches) == (0.4, 4)
