"""What is particular to each method: the equalities it must satisfy, and the errors it gives."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import FrozenBatchNorm2d

from generalizeformer.adapters import alpha_bn, generalizeformer, t3a, tent
from generalizeformer.adapters import source as plain
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.guard import Guard
from generalizeformer.core.losses import per_image_entropy
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
def with_batch_statistics(backbone: nn.Module, images: Tensor, weight: float) -> Tensor:
    """An independent α-BN: each layer is given its statistics just before it runs."""
    network = copy.deepcopy(backbone).eval()

    def mix(layer: Any, inputs: tuple[Tensor]) -> None:
        variance, mean = torch.var_mean(inputs[0], (0, 2, 3), correction=1)
        layer.running_mean = (1 - weight) * layer.running_mean + weight * mean
        layer.running_var = (1 - weight) * layer.running_var + weight * variance

    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_pre_hook(mix)
    result: Tensor = network(images)
    return result


# Source


def test_source_is_the_backbone_in_eval_mode(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    expected = backbone.eval()(images).detach()
    backbone.train()
    assert torch.equal(plain.build(source, plain.Config()).step(images), expected)


# α-BN


def test_alpha_bn_without_batch_weight_is_the_source(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = alpha_bn.build(source, alpha_bn.Config(batch_weight=0.0))
    assert_close(adapter.step(images), backbone(images).detach())


@pytest.mark.parametrize("weight", [0.1, 0.7, 1.0])
def test_alpha_bn_mixes_layer_by_layer(
    weight: float, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = alpha_bn.build(source, alpha_bn.Config(batch_weight=weight))
    expected = with_batch_statistics(backbone, images, weight)
    assert_close(adapter.step(images), expected)
    assert (expected - backbone(images)).abs().max() > 1e-3


def test_alpha_bn_with_all_weight_on_the_batch_is_batch_statistics_but_for_the_unbiased_variance() -> (
    None
):
    model, images = net(nn.BatchNorm2d(8)), torch.randn(3, 3, 4, 4).double()
    count = 3 * 2 * 2
    norm: Any = model.backbone[1]
    batch = tent.build(model, tent.Config(learning_rate=0.0))
    unbiased = alpha_bn.build(model, alpha_bn.Config(batch_weight=1.0)).step(images)
    assert (unbiased - batch.step(images)).abs().max() > 1e-4
    seen = model.backbone[0](images)
    variance = seen.var((0, 2, 3), correction=0)
    with torch.no_grad():  # dividing γ by the factor makes the biased statistics give the same
        norm.weight.mul_(
            ((variance + norm.eps) / (variance * count / (count - 1) + norm.eps)).sqrt()
        )
    batch.reset()
    assert_close(batch.step(images), unbiased)


def test_alpha_bn_depends_on_batch_mates(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = alpha_bn.build(source, alpha_bn.Config())
    assert (adapter.predict(images)[:4] - adapter.predict(images[:4])).abs().max() > 1e-3


def test_alpha_bn_serves_layers_without_affine_and_frozen_ones() -> None:
    torch.manual_seed(5)
    images = torch.randn(6, 3, 8, 8).double()
    ordinary, bare, frozen = (
        nn.BatchNorm2d(8),
        nn.BatchNorm2d(8, affine=False),
        FrozenBatchNorm2d(8),
    )
    expected = None
    for norm in (ordinary, bare, frozen):
        norm.running_mean.fill_(0.3)
        norm.running_var.fill_(0.7)
        got = alpha_bn.build(net(norm), alpha_bn.Config(batch_weight=0.4)).step(images)
        expected = got if expected is None else expected
        assert_close(got, expected)


def test_alpha_bn_follows_a_backbone_that_was_cast(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = alpha_bn.build(source, alpha_bn.Config())
    before = adapter.step(images)
    backbone.float()
    assert_close(adapter.step(images.float()).double(), before, atol=1e-4)


# Tent


def test_tent_without_learning_is_batch_statistics(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = tent.build(source, tent.Config(learning_rate=0.0, steps=2))
    for batch in images.split(8):
        assert_close(adapter.step(batch), copy.deepcopy(backbone).train()(batch).detach())


def test_tent_answers_its_first_batch_before_learning(
    source: GeneralizeFormer, images: Tensor
) -> None:
    slow, fast = (tent.build(source, tent.Config(learning_rate=r)) for r in (1e-4, 0.1))
    assert torch.equal(slow.step(images[:8]), fast.step(images[:8]))
    assert not torch.allclose(slow.step(images[8:]), fast.step(images[8:]))


def test_tent_moves_the_affine_parts_of_batch_norm_only(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = tent.Tent(source, tent.Config())
    adapter.step(images)
    before = dict(backbone.named_parameters())
    moved = {n for n, v in adapter.backbone.named_parameters() if not torch.equal(v, before[n])}
    norms = ("blocks.0.1", "blocks.1.1")
    assert moved == {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")}
    assert not any("running" in name for name, _ in adapter.backbone.named_buffers())
    assert not any(module.training for module in adapter.backbone.modules())


def test_tent_lowers_the_entropy_of_a_fixed_batch(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = tent.build(source, tent.Config())
    entropies = [per_image_entropy(adapter.step(images)).mean() for _ in range(20)]
    assert all(later < earlier for earlier, later in itertools.pairwise(entropies))


def test_tent_leaves_dropout_off(images: Tensor) -> None:
    adapter = tent.build(net(nn.BatchNorm2d(8), nn.Dropout(0.5)), tent.Config())
    first = [adapter.step(images), adapter.step(images)]
    adapter.reset()
    assert torch.equal(
        torch.stack([adapter.step(images), adapter.step(images)]), torch.stack(first)
    )


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True)])
def test_tent_serves_models_that_normalise_each_image(norm: nn.Module, images: Tensor) -> None:
    model = net(norm)
    adapter = tent.Tent(model, tent.Config(learning_rate=0.01))
    expected = model.backbone.eval()(images).detach()
    assert_close(adapter.predict(images), expected)  # no batch statistics
    adapter.step(images)
    assert not torch.equal(adapter.predict(images), expected)
    moved = dict(adapter.backbone.named_parameters())
    same = {n for n, v in model.backbone.named_parameters() if torch.equal(v, moved[n])}
    assert set(moved) - same == {"1.weight", "1.bias"}


def test_tent_moves_only_batch_norm_where_there_are_both_kinds(images: Tensor) -> None:
    adapter = tent.Tent(net(nn.BatchNorm2d(8), nn.LayerNorm(8)), tent.Config())
    moving = {name for name, value in adapter.backbone.named_parameters() if value.requires_grad}
    assert moving == {"1.weight", "1.bias"}


def test_tent_moves_other_norm_layers_where_no_batch_norm_has_anything_to_move(
    images: Tensor,
) -> None:
    model = net(nn.BatchNorm2d(8, affine=False), nn.LayerNorm(8))
    adapter = tent.Tent(model, tent.Config(learning_rate=0.01))
    train = copy.deepcopy(model.backbone).train()
    assert_close(adapter.step(images), train(images).detach())  # the batch's statistics
    before = dict(model.backbone.named_parameters())
    after = dict(adapter.backbone.named_parameters())
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        "5.weight",
        "5.bias",
    }


# T3A


def unit_classifier(source: GeneralizeFormer) -> nn.Linear:
    """Rows of norm 1 and no bias: then T3A without data is the source model."""
    classifier: Any = source.backbone.get_submodule(source.slots.classifier)
    with torch.no_grad():
        classifier.weight.copy_(F.normalize(classifier.weight, dim=1))
        classifier.bias.zero_()
    return classifier


def test_t3a_without_data_and_with_unit_rows_is_the_source(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    unit_classifier(source)
    assert_close(t3a.build(source, t3a.Config()).predict(images), backbone(images).detach())


def test_t3a_adds_a_batch_before_it_answers_it(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    rows = unit_classifier(source).weight.detach()
    features = backbone.blocks(images).mean((2, 3)).detach()
    members = F.one_hot((features @ rows.T).argmax(1), 5).double()
    templates = F.normalize(rows + members.T @ F.normalize(features, dim=1), dim=1)
    got = t3a.build(source, t3a.Config(supports=None)).step(images)
    assert_close(got, features @ templates.T)
    assert members.sum(0).count_nonzero() > 1


@pytest.mark.parametrize("supports", [1, 3])
def test_t3a_memory_is_bounded(supports: int, source: GeneralizeFormer, images: Tensor) -> None:
    adapter = t3a.T3A(source, t3a.Config(supports=supports))
    for batch in images.split(5):
        adapter.step(batch)
        assert adapter.labels.bincount().max() <= supports
    assert adapter.labels.bincount().max() == supports


def test_t3a_keeps_all_where_asked(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = t3a.T3A(source, t3a.Config(supports=None))
    for number, batch in enumerate(images.split(8)):
        adapter.step(batch)
        assert len(adapter.supports) == 5 + 8 * (number + 1)


def test_t3a_keeps_the_surest_supports(source: GeneralizeFormer, images: Tensor) -> None:
    every, few = (t3a.T3A(source, t3a.Config(supports=k)) for k in (None, 2))
    for batch in images.split(8):
        every.step(batch)
        few.step(batch)
    for label in range(5):
        lowest = every.entropies[every.labels == label].sort().values[:2]
        assert torch.equal(few.entropies[few.labels == label], lowest)


def test_t3a_keeps_the_first_of_equally_sure_supports(source: GeneralizeFormer) -> None:
    adapter = t3a.T3A(source, t3a.Config(supports=1))
    features = torch.eye(12).double()[:3]
    adapter._remember(features, torch.tensor([[90.0, 0, 0, 0, 0]]).double().expand(3, 5))
    assert torch.equal(adapter.supports[adapter.labels == 0], features[:1])


def test_t3a_does_not_care_for_the_order_inside_a_batch(
    source: GeneralizeFormer, images: Tensor
) -> None:
    one, other = (t3a.build(source, t3a.Config(supports=3)) for _ in range(2))
    assert_close(one.step(images), other.step(images.flip(0)).flip(0))


def test_t3a_with_surer_rows_than_images_stays_as_it_is(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    classifier = unit_classifier(source)
    with torch.no_grad():
        classifier.weight.mul_(8)
        backbone.blocks[1][1].weight.mul_(0.02)  # features too small to be sure of
        backbone.blocks[1][1].bias.mul_(0.02)
    adapter = t3a.build(source, t3a.Config(supports=1))
    before = adapter.predict(images)
    assert_close(adapter.step(images), before)


# GeneralizeFormer


def test_generalizeformer_answers_as_the_model_does(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    got = generalizeformer.build(source, generalizeformer.Config()).step(images)
    assert_close(got, source(images).detach())
    assert (got - backbone(images)).abs().max() > 1e-2  # or its laws would prove nothing


def test_generalizeformer_can_be_guarded_without_touching_the_model(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = generalizeformer.Config(guard=Guard(limit=0.0))
    assert_close(generalizeformer.build(source, config).step(images), backbone(images).detach())
    assert source.config.guard is None
    assert (source(images) - backbone(images)).abs().max() > 1e-2


def test_generalizeformer_follows_a_phi_that_learns_on(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = generalizeformer.build(source, generalizeformer.Config())
    before = adapter.predict(images)
    with torch.no_grad():
        for value in source.generator.parameters():
            value.mul_(0.5)
    assert_close(adapter.predict(images), source(images).detach())
    assert not torch.equal(adapter.predict(images), before)


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: alpha_bn.Config(batch_weight=1.5), "alpha_bn: batch_weight is 1.5; it is a share"),
        (lambda: alpha_bn.Config(batch_weight=float("nan")), "alpha_bn: batch_weight is nan"),
        (
            lambda: tent.Config(learning_rate=-1.0),
            "tent: learning_rate is -1.0; give a number of at",
        ),
        (lambda: tent.Config(betas=(0.9, 1.0)), r"tent: betas are \(0.9, 1.0\); give two numbers"),
        (lambda: tent.Config(steps=0), "tent: steps is 0; give at least 1"),
        (
            lambda: t3a.Config(supports=0),
            "t3a: supports is 0; give at least 1, or None to keep all",
        ),
        (lambda: t3a.Config(supports=-1), "t3a: supports is -1"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        make()


@pytest.mark.parametrize("norm", [None, nn.GroupNorm(2, 8)])
def test_alpha_bn_needs_batch_norm(norm: nn.Module | None) -> None:
    expected = r"^alpha_bn: Sequential has no BatchNorm layer.*; try t3a or generalizeformer$"
    with pytest.raises(SlotError, match=expected):
        alpha_bn.build(net(norm), alpha_bn.Config())


def test_alpha_bn_refuses_what_only_looks_like_batch_norm() -> None:
    class Doubled(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = net(Doubled(8))
    with pytest.raises(SlotError, match=r"^alpha_bn: 1 is a Doubled, which does not .*; try t3a$"):
        alpha_bn.build(model, alpha_bn.Config())


@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d(8, affine=False)])
def test_tent_needs_an_affine_norm_layer(norm: nn.Module | None) -> None:
    expected = r"^tent: the model has no normalisation layer .*; try t3a or generalizeformer$"
    with pytest.raises(SlotError, match=expected):
        tent.build(net(norm), tent.Config())


def test_tent_refuses_frozen_batch_norm() -> None:
    expected = r"^tent: 1 is a FrozenBatchNorm2d, which cannot .*; replace it with nn.BatchNorm2d"
    with pytest.raises(SlotError, match=expected):
        tent.build(net(FrozenBatchNorm2d(8)), tent.Config())


@pytest.mark.parametrize("method", [tent, alpha_bn])
def test_one_image_is_refused_where_a_layer_sees_one_value_per_channel(
    method: Any, images: Tensor
) -> None:
    adapter = method.build(net(None, nn.BatchNorm1d(8)), method.Config())
    for call in (adapter.step, adapter.predict):
        with pytest.raises(ImageError, match=rf"^{method.__name__.split('.')[-1]}: .*at least 2"):
            call(images[:1])
        assert call(images[:2]).isfinite().all()
