"""RoTTA: its update rule by hand, when it learns and from what, which models it serves."""

import copy

import pytest
import torch
from recordings import toy_network
from teaching import assert_close, net, seeded
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from generalizeformer.adapters import rotta
from generalizeformer.adapters._robust_norm import following, make_robust, robust_norms
from generalizeformer.adapters._strong_views import strong_view
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.errors import SlotError
from generalizeformer.seeds import derive


def test_rotta_is_the_source_until_its_first_update(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = rotta.build(source, rotta.Config(update_every=24, statistics_rate=0.5))
    for batch in images.split(5):
        assert_close(adapter.step(batch), backbone(batch).detach())
    assert (adapter.predict(images) - backbone(images)).abs().max() > 1e-2


def test_rotta_that_moves_nothing_stays_the_source(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = rotta.Config(update_every=2, learning_rate=0.0, statistics_rate=0.0, teacher_rate=0.5)
    adapter = rotta.build(source, config)
    for batch in images.split(8):
        assert_close(adapter.step(batch), backbone(batch).detach())


def test_rotta_answers_each_image_alone(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = rotta.build(source, rotta.Config(update_every=8))
    adapter.step(images)
    assert_close(adapter.predict(images)[3:4], adapter.predict(images[3:4]))


def test_rotta_answers_the_whole_batch_before_updates_that_fall_into_it(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = rotta.build(source, rotta.Config(update_every=3, statistics_rate=0.5))
    assert_close(adapter.step(images), backbone(images).detach())


def test_rotta_counts_images_and_not_batches(source: GeneralizeFormer, images: Tensor) -> None:
    one, other = (rotta.RoTTA(source, rotta.Config(update_every=8)) for _ in range(2))
    answers = [
        torch.cat([adapter.step(batch) for batch in images.split(size)])
        for adapter, size in ((one, 8), (other, 4))
    ]
    assert_close(answers[1], answers[0])
    for first, second in zip(one.student.parameters(), other.student.parameters(), strict=True):
        assert_close(first, second, atol=1e-7)


def test_rotta_statistics_follow_the_memory_by_hand(images: Tensor) -> None:
    model = GeneralizeFormer(toy_network())
    rate = 0.05
    config = rotta.Config(update_every=8, memory_size=5, statistics_rate=rate)
    adapter = rotta.RoTTA(model, config)
    first = model.backbone.conv1
    mean, variance = model.backbone.bn1.running_mean, model.backbone.bn1.running_var
    seen = model.backbone.bn1.running_mean, model.backbone.bn1.running_var
    generator = seeded(derive("rotta", 0))
    for batch in images.split(8):
        adapter.step(batch)
        kept = adapter.memory.images
        shown = first(kept), first(strong_view(kept, model.card.preprocessing, generator))
        statistics = [(x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)) for x in shown]
        mean, variance = (
            (1 - rate) * old + rate * new
            for old, new in zip((mean, variance), statistics[0], strict=True)
        )
        seen = tuple(
            (1 - rate) * old + rate * new for old, new in zip(seen, statistics[1], strict=True)
        )
    teacher, student = adapter.backbone.bn1.layer, adapter.student.bn1.layer  # type: ignore[union-attr]
    assert_close(teacher.running_mean, mean.detach())
    assert_close(teacher.running_var, variance.detach())
    assert_close(student.running_mean, seen[0].detach())
    assert_close(student.running_var, seen[1].detach())
    assert (mean - seen[0]).abs().max() > 1e-4


def test_rotta_updates_by_hand(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    """One update from four images, all of which find room, so that their ages are 4, 3, 2 and 1."""
    rate, share = 0.01, 0.1
    config = rotta.Config(
        update_every=4, memory_size=20, learning_rate=rate, teacher_rate=share, statistics_rate=0.05
    )
    adapter = rotta.RoTTA(source, config)
    adapter.step(images[:4])
    assert adapter.memory.ages == [4 / 20, 3 / 20, 2 / 20, 1 / 20]

    teacher, student = (copy.deepcopy(backbone) for _ in range(2))
    view = strong_view(images[:4], source.card.preprocessing, seeded(derive("rotta", 0)))
    for network in (teacher, student):
        make_robust(network, 0.05, "rotta")
    with following(teacher, student):
        q, p = teacher(images[:4]).softmax(1).detach(), student(view).softmax(1)
    ages = torch.tensor([4, 3, 2, 1]).double() / 20
    weights = torch.exp(-ages) / (1 + torch.exp(-ages))
    loss = (weights * -(q * p.log()).sum(1)).sum() / 4
    norms = [norm.layer for norm in robust_norms(student)]
    values = [value for norm in norms for value in (norm.weight, norm.bias)]
    gradients = torch.autograd.grad(loss, values)
    moved = [
        value for n in robust_norms(adapter.student) for value in (n.layer.weight, n.layer.bias)
    ]
    slow = [
        value for n in robust_norms(adapter.backbone) for value in (n.layer.weight, n.layer.bias)
    ]
    for value, gradient, got, taught in zip(values, gradients, moved, slow, strict=True):
        solid = gradient.abs() > 1e-9
        expected = value - rate * gradient / (gradient.abs() + 1e-8)
        assert solid.any()
        assert_close(got[solid], expected[solid], atol=1e-7)
        assert_close(taught, (1 - share) * value + share * got)


def test_rotta_moves_the_affine_parts_of_batch_norm_only(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = rotta.RoTTA(source, rotta.Config(update_every=8))
    adapter.step(images)
    before = dict(backbone.named_parameters())
    for network in (adapter.student, adapter.backbone):
        after = {name.replace(".layer", ""): v for name, v in network.named_parameters()}
        moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
        norms = ("blocks.0.1", "blocks.1.1")
        assert moved == {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")}


def test_rotta_learns_from_its_memory_again_after_images_left_it(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = rotta.RoTTA(source, rotta.Config(update_every=8, memory_size=6))
    for batch in images.split(8):
        adapter.step(batch)
        assert len(adapter.memory.items) <= 6
    arrivals = [item.arrival for item in adapter.memory.items]
    assert all(
        torch.equal(item.image, images[arrival])
        for item, arrival in zip(adapter.memory.items, arrivals, strict=True)
    )
    assert max(arrivals) >= 8


def test_rotta_serves_models_that_normalise_each_image(images: Tensor) -> None:
    model = net(norm=nn.GroupNorm(2, 8))
    adapter = rotta.RoTTA(model, rotta.Config(update_every=8))
    adapter.step(images)
    moved = dict(adapter.student.named_parameters())
    same = {n for n, v in model.backbone.named_parameters() if torch.equal(v, moved[n])}
    assert set(moved) - same == {"1.weight", "1.bias"}


def test_rotta_serves_frozen_batch_norm_beside_one_that_can_move(images: Tensor) -> None:
    model = net(nn.BatchNorm1d(8), norm=FrozenBatchNorm2d(8))
    adapter = rotta.RoTTA(model, rotta.Config(update_every=1, memory_size=1))
    assert_close(adapter.step(images[:1]), model.backbone.eval()(images[:1]).detach())
    assert adapter.step(images[1:3]).isfinite().all()
    assert len(robust_norms(adapter.student)) == 2


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8, affine=False), FrozenBatchNorm2d(8)])
def test_rotta_moves_other_norm_layers_where_no_batch_norm_has_anything_to_move(
    norm: nn.Module, images: Tensor
) -> None:
    model = net(nn.LayerNorm(8), norm=norm)
    adapter = rotta.RoTTA(model, rotta.Config(update_every=8, statistics_rate=0.5))
    assert_close(adapter.step(images[:8]), model.backbone.eval()(images[:8]).detach())
    before = dict(model.backbone.named_parameters())
    after = dict(adapter.student.named_parameters())
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        "5.weight",
        "5.bias",
    }
    (robust,) = robust_norms(adapter.backbone)  # its statistics follow the memory all the same
    assert not torch.equal(robust.layer.running_mean, norm.running_mean)


def test_rotta_needs_an_affine_norm_layer() -> None:
    expected = r"^rotta: the model has no normalisation layer .*; try t3a or generalizeformer$"
    for norm in (nn.Identity(), nn.BatchNorm2d(8, affine=False), FrozenBatchNorm2d(8)):
        with pytest.raises(SlotError, match=expected):
            rotta.build(net(norm=norm), rotta.Config())


def test_rotta_refuses_what_only_looks_like_batch_norm() -> None:
    class Doubled(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    with pytest.raises(SlotError, match=r"^rotta: 1 is a Doubled, which does not .*; try t3a$"):
        rotta.build(net(norm=Doubled(8)), rotta.Config())
