"""Methods that minimise the entropy of some images only: ETA, EATA, SAR and DeYO."""

import copy
import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import NORMS, assert_agree, recorded, stream_of
from torch import Tensor, nn

from generalizeformer.adapters import deyo, eata, eta, sar, tent
from generalizeformer.adapters._entropy_descent import EntropyDescent
from generalizeformer.core.generalizeformer import Config, GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, SlotError, UserError

METHODS: list[Any] = [eta, eata, sar, deyo]
PARTS = [f"{norm}.{part}" for norm in NORMS for part in ("weight", "bias")]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__.split(".")[-1])


def eager(method: Any, **more: Any) -> Any:
    """Settings under which every image teaches."""
    also = {"threshold": -1.0} if method is deyo else {}
    return method.Config(**{"entropy_margin": 1.0} | also | more)


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def assert_parameters(adapter: EntropyDescent, trace: dict[str, Tensor], key: str, at: int) -> None:
    for part in PARTS:
        value = adapter.backbone.get_parameter(part)
        assert_agree(value, trace[f"{key}/params_per_batch/{part}"][at])


def net(*layers: nn.Module) -> GeneralizeFormer:
    """conv, ReLU, pooling, these layers, a classifier."""
    torch.manual_seed(4)
    first = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    backbone = nn.Sequential(*first, *layers, nn.Linear(8, 5)).double()
    return GeneralizeFormer(backbone, Config(selection=Selection(kinds=("classifier",))))


def apart(one: nn.Module, other: nn.Module) -> float:
    """The distance between two networks' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return math.sqrt(sum((a - b).square().sum().item() for a, b in pairs))


def unlearned(source: GeneralizeFormer, images: Tensor) -> Tensor:
    """Answers under the batch's statistics, before anything is learned."""
    return tent.build(source, tent.Config()).predict(images)


def distance(adapter: EntropyDescent, backbone: nn.Module) -> float:
    """How far the copy is from the source."""
    return apart(adapter.backbone, backbone)


def one_sgd_step(backbone: nn.Module, images: Tensor, loss: Any, rate: float) -> nn.Module:
    """An independent update of the affine parts under batch statistics."""
    network = copy.deepcopy(backbone).train()
    moving = [p for m in network.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    gradients = torch.autograd.grad(loss(network, network(images)), moving)
    with torch.no_grad():
        for value, gradient in zip(moving, gradients, strict=True):
            value -= rate * gradient
    return network


def assert_same_parameters(adapter: EntropyDescent, network: nn.Module) -> None:
    for name, value in adapter.backbone.named_parameters():
        assert_close(value.detach(), network.get_parameter(name).detach())


# Recorded numbers

VISIBLE = 0.05  # the learning rate of the records
TOLD_APART = {"learning_rate": VISIBLE, "redundancy_margin": 0.6}


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("eta", eta.Config(**TOLD_APART)),
        (
            "eta_strict",
            eta.Config(learning_rate=VISIBLE, entropy_margin=0.1, redundancy_margin=0.3),
        ),
        (
            "eta_bs1",
            eta.Config(
                learning_rate=VISIBLE, entropy_margin=1.6 / math.log(5), redundancy_margin=0.9995
            ),
        ),
        ("eta_published_d_margin", eta.Config(learning_rate=VISIBLE)),
        ("eata", eata.Config(**TOLD_APART, fisher_images=0)),
        ("eata_alpha1", eata.Config(**TOLD_APART, fisher_images=0, fisher_alpha=1.0)),
    ],
)
def test_eta_and_eata_give_the_recorded_numbers(
    toy: GeneralizeFormer, variant: str, config: Any
) -> None:
    trace = recorded("eata")
    adapter: Any = (eata.EATA if isinstance(config, eata.Config) else eta.ETA)(toy, config)
    if isinstance(adapter, eata.EATA):
        for batch in recorded("source")["images"]:  # as the reference does, before the target
            adapter.weigh(batch)
        for part, importance in zip(PARTS, adapter.importance, strict=True):
            assert_agree(importance, trace[f"eata/fisher/{part}"])
    for number, batch in enumerate(stream_of(variant)):
        assert_agree(adapter.step(batch), trace[f"{variant}/logits"][number])
        assert_parameters(adapter, trace, variant, number)
        average = torch.zeros(5).double() if adapter.average is None else adapter.average
        assert_agree(average, trace[f"{variant}/prob_average"][number])


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


# What all four have in common


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


# ETA


def test_eta_weighs_sure_images_more(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = eta.ETA(source, eta.Config(learning_rate=0.1, entropy_margin=0.6))
    adapter.step(images)

    def loss(_: nn.Module, logits: Tensor) -> Tensor:
        sure = [h for h in per_image_entropy(logits) if h < 0.6 * math.log(5)]
        assert 1 < len(sure) < len(images)
        return sum(h * math.exp(0.6 * math.log(5) - h.item()) for h in sure) / len(sure)  # type: ignore[return-value]

    assert_same_parameters(adapter, one_sgd_step(backbone, images, loss, 0.1))


def test_eta_learns_nothing_from_predictions_it_has_seen(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = eta.ETA(source, eta.Config(learning_rate=0.1, redundancy_margin=0.0, momentum=0.0))
    adapter.step(images)
    after, average = adapter.values(), adapter.average
    adapter.step(images)
    assert average is adapter.average
    assert all(torch.equal(one, other) for one, other in zip(after, adapter.values(), strict=True))


def test_eta_forgets_the_average_at_reset(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = eta.ETA(source, eta.Config(entropy_margin=1.0))
    adapter.step(images)
    assert adapter.average is not None
    adapter.reset()
    assert adapter.average is None


# EATA

FAST: dict[str, Any] = {"learning_rate": 0.05, "entropy_margin": 1.0, "redundancy_margin": 2.0}


def test_eata_without_its_anchor_is_eta(source: GeneralizeFormer, images: Tensor) -> None:
    one = eata.build(source, eata.Config(fisher_alpha=0.0, **FAST))
    other = eta.build(source, eta.Config(**FAST))
    for batch in images.split(8):
        assert torch.equal(one.step(batch), other.step(batch))


def test_eata_stays_nearer_to_the_source_the_heavier_its_anchor(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    distances = []
    for alpha in (0.0, 10.0, 100.0):
        adapter = eata.EATA(source, eata.Config(fisher_alpha=alpha, **FAST))
        for _ in range(5):
            for batch in images.split(8):
                adapter.step(batch)
        distances.append(distance(adapter, backbone))
    assert distances[0] > 1.02 * distances[1] > 1.02**2 * distances[2] > 0


def test_eata_weighs_at_the_source_wherever_it_has_moved_to(
    source: GeneralizeFormer, images: Tensor
) -> None:
    moved, still = (
        eata.EATA(source, eata.Config(**FAST | {"learning_rate": rate})) for rate in (1.0, 0.0)
    )
    for batch in images.split(8):
        moved.step(batch)
        still.step(batch)
    for one, other in zip(moved.importance, still.importance, strict=True):
        assert torch.equal(one, other)
        assert one.any()


def test_eata_weighs_the_first_images_only(source: GeneralizeFormer, images: Tensor) -> None:
    adapter = eata.EATA(source, eata.Config(fisher_images=9, **FAST))
    weighed = []
    for batch in images.split(8):
        adapter.step(batch)
        weighed.append(torch.cat([value.flatten() for value in adapter.importance]))
    assert (adapter.batches_weighed, adapter.images_weighed) == (2, 16)
    assert not torch.equal(weighed[0], weighed[1])
    assert torch.equal(weighed[1], weighed[2])


def test_eata_is_where_it_was_after_a_batch_that_cannot_be_weighed(images: Tensor) -> None:
    adapter = eata.EATA(net(nn.BatchNorm1d(8)), eata.Config(**FAST))
    adapter.step(images)
    before = adapter.predict(images)
    with pytest.raises(ImageError, match="at least 2"):
        adapter.step(images[:1])
    assert torch.equal(adapter.predict(images), before)


# SAR


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


# DeYO


@given(
    patches=st.integers(1, 5),
    high=st.integers(5, 23),
    wide=st.integers(5, 23),
    count=st.integers(1, 4),
)
@settings(max_examples=25)
def test_shuffled_images_keep_their_shape_and_a_single_patch_its_content(
    patches: int, high: int, wide: int, count: int
) -> None:
    images = torch.rand(count, 2, high, wide).double()
    got = deyo.shuffled(images, patches, torch.Generator().manual_seed(0))
    assert got.shape == images.shape
    assert got.isfinite().all()
    if patches == 1:
        assert torch.equal(got, images)


def test_a_shuffle_moves_whole_patches_of_each_image_in_its_own_order() -> None:
    numbers = torch.arange(16).reshape(4, 4).repeat_interleave(3, 0).repeat_interleave(2, 1)
    images = numbers.expand(6, 2, 12, 8).double()
    got = deyo.shuffled(images, 4, torch.Generator().manual_seed(0))
    assert torch.equal(got[:, 0], got[:, 1])
    corners = got[:, 0, ::3, ::2]
    assert torch.equal(
        corners.repeat_interleave(3, 1).repeat_interleave(2, 2), got[:, 0]
    )  # patches are whole
    orders = corners.flatten(1)
    assert torch.equal(orders.sort(1).values, torch.arange(16.0).double().expand(6, 16))
    assert len({tuple(order.tolist()) for order in orders}) == 6


def test_a_patch_keeps_what_is_inside_it() -> None:
    images = torch.rand(1, 3, 8, 12).double()
    got = deyo.shuffled(images, 2, torch.Generator().manual_seed(1))
    tiles = {
        name: {
            tuple(x[0, :, i : i + 4, j : j + 6].flatten().tolist()) for i in (0, 4) for j in (0, 6)
        }
        for name, x in (("given", images), ("got", got))
    }
    assert tiles["given"] == tiles["got"]
    assert len(tiles["got"]) == 4


def test_deyo_learns_from_what_falls_apart_with_its_patches(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    config = deyo.Config(learning_rate=0.1, entropy_margin=0.5, threshold=0.01, patches=2)
    adapter = deyo.DeYO(source, config)
    adapter.step(images)
    generator = deyo.DeYO(source, config).generator

    def loss(network: nn.Module, logits: Tensor) -> Tensor:
        p, total, count = logits.softmax(1), torch.zeros(()).double(), 0
        sure = [n for n, h in enumerate(per_image_entropy(logits)) if h < 0.5 * math.log(5)]
        destroyed = network(deyo.shuffled(images[sure], 2, generator)).softmax(1)
        for row, number in enumerate(sure):
            label = int(p[number].argmax())
            fall = (p[number, label] - destroyed[row, label]).item()
            if fall > 0.01:
                h = per_image_entropy(logits[number : number + 1])[0]
                total = total + h * (math.exp(0.4 * math.log(5) - h.item()) + math.exp(fall))
                count += 1
        assert 0 < count < len(sure) < len(images)
        return total / count

    assert_same_parameters(adapter, one_sgd_step(backbone, images, loss, 0.1))


def test_deyo_moves_nothing_where_no_answer_falls(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = deyo.DeYO(source, deyo.Config(learning_rate=1.0, entropy_margin=1.0, threshold=1.0))
    adapter.step(images)
    assert distance(adapter, backbone) == 0


def test_deyo_shuffles_by_its_seed(source: GeneralizeFormer, images: Tensor) -> None:
    answers = []
    for seed in (1, 1, 2):
        config = deyo.Config(learning_rate=0.5, entropy_margin=1.0, threshold=0.0, seed=seed)
        adapter = deyo.build(source, config)
        adapter.step(images)
        answers.append(adapter.predict(images))
    assert torch.equal(answers[0], answers[1])
    assert not torch.allclose(answers[0], answers[2])


def test_deyo_refuses_images_smaller_than_its_patches(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = deyo.build(source, deyo.Config(patches=9))
    expected = r"^deyo: got images of 16x8 pixels, too small for 9 patches a side; give larger"
    with pytest.raises(ImageError, match=expected):
        adapter.step(images[..., :8])


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
