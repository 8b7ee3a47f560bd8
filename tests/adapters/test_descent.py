"""Methods that follow a loss downhill: against recorded numbers, and what is particular to each."""

import itertools
from math import log
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import assert_agree, recorded, stream_of
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.adapters import pl, pl_c, shot, shot_im, tent, tent_bn, tent_c
from generalizeformer.adapters._descent import HeadDescent
from generalizeformer.adapters._objectives import confident_cross_entropy, information
from generalizeformer.core.generalizeformer import Config, GeneralizeFormer
from generalizeformer.core.losses import per_image_entropy
from generalizeformer.core.slots import Selection
from generalizeformer.errors import ImageError, SlotError, UserError

HARNESS = [tent_bn, tent_c, pl, pl_c, shot, shot_im]
WHOLE = [tent, pl, shot, shot_im]  # those that let a part of the network be chosen
NORM_VALUES = {f"blocks.{b}.1.{part}" for b in (0, 1) for part in ("weight", "bias")}


def name_of(method: object) -> str | None:
    return method.__name__.rpartition(".")[2] if isinstance(method, ModuleType) else None


def every(methods: list[ModuleType]) -> Any:
    return pytest.mark.parametrize("method", methods, ids=name_of)


def network(*last: nn.Module, classes: int = 5) -> GeneralizeFormer:
    """conv, pooling, whatever comes last, a classifier."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *last]
    backbone = nn.Sequential(*layers, nn.Linear(8, classes)).double()
    return GeneralizeFormer(backbone, Config(selection=Selection(kinds=("classifier",))))


def eager(method: Any, **settings: Any) -> Any:
    """A Config under which the network of these tests, which is sure of nothing, has pseudo labels to learn from."""
    threshold = {"threshold": 0.2} if method in (pl, pl_c, shot) else {}
    return method.Config(**threshold, **settings)


def values_of(adapter: Any) -> dict[str, Tensor]:
    """Everything that could have moved, by the names of the recorded network."""
    if not isinstance(adapter, HeadDescent):
        return dict(adapter.backbone.named_parameters())
    parts = {"fc": adapter.head, "prebn": getattr(adapter, "norm", nn.Identity())}
    return {
        f"{at}.{n}": value for at, part in parts.items() for n, value in part.named_parameters()
    }


def moved(adapter: Any, backbone: nn.Module) -> set[str]:
    """The names of the backbone's parameters that are no longer the source's."""
    now = dict(adapter.backbone.named_parameters())
    return {n for n, value in backbone.named_parameters() if not torch.equal(value, now[n])}


# Recorded numbers


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
    follow(method, toy, trace, variant, settings, atol=1e-8)


@every([shot, shot_im])
def test_agrees_on_single_images_where_the_loss_cancels_up_to_rounding(
    toy: GeneralizeFormer, method: Any
) -> None:
    follow(method, toy, str(name_of(method)), "gamma1_bs1", {}, atol=1e-6)


def follow(
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
        close(adapter.step(batch), expected["logits"][number], atol)
        for key, value in expected.items():
            if key.startswith("params_per_batch/"):
                close(values_of(adapter)[key.rpartition("/")[2]], value[number], atol)
    for key, value in expected.items():
        if key.startswith("params/"):
            close(values_of(adapter)[key.rpartition("/")[2]], value, atol)
    assert len(expected) >= 3


def close(got: Tensor, expected: Tensor, atol: float) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def test_tent_of_the_harness_is_tent() -> None:
    assert_agree(recorded("tent_full_t3a")["gamma1/logits"], recorded("tent")["online/logits"])


# Laws of all


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
        close(adapter.step(batch), source.backbone(batch).detach(), 1e-10)


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
    close(three.step(images[:8]), answers[-1], 1e-12)
    close(three.predict(images), one.predict(images), 1e-12)


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


# What moves


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
    close(adapter.predict(images), F.linear(features, weight, bias).detach(), 1e-10)


def test_tent_bn_without_learning_standardises_the_features_of_a_batch(
    source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = tent_bn.build(source, tent_bn.Config(learning_rate=0.0))
    for batch in images.split(8):
        features = backbone.blocks(batch).mean((2, 3)).detach()
        variance, mean = torch.var_mean(features, 0, correction=0)
        expected = backbone.classifier((features - mean) / (variance + 1e-5).sqrt()).detach()
        close(adapter.step(batch), expected, 1e-10)
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
    close(change.max(), torch.tensor(0.01).double(), 1e-4)  # Adam's first step, not two of them


def test_shot_keeps_a_weight_that_the_classifier_shares(images: Tensor) -> None:
    model = network(nn.Linear(8, 8), nn.ReLU(), classes=8)
    model.backbone[4].weight = model.backbone[6].weight
    adapter: Any = shot.build(model, shot.Config(learning_rate=0.01))
    adapter.step(images)
    assert torch.equal(adapter.backbone[4].weight, model.backbone[4].weight)
    assert not torch.equal(adapter.backbone[4].bias, model.backbone[4].bias)


# Objectives


def logits_of(seed: int, images: int, classes: int, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, classes, generator=generator).double() * scale


batches = st.builds(
    logits_of, st.integers(0, 99), st.integers(1, 9), st.integers(2, 70), st.floats(0.0, 9.0)
)


@settings(max_examples=25, deadline=None)
@given(batches, st.sampled_from([0.0, 0.5, 0.9]))
def test_pseudo_labels_teach_the_confident_images_only(logits: Tensor, threshold: float) -> None:
    chosen = logits[logits.softmax(1).amax(1) > threshold]
    got = confident_cross_entropy(logits, threshold)
    expected = (
        F.cross_entropy(chosen, chosen.argmax(1)) if len(chosen) else torch.zeros(()).double()
    )
    close(got, expected, 1e-12)


def test_nobody_confident_is_a_loss_and_gradients_of_zero() -> None:
    logits = logits_of(0, 6, 5, 1.0).requires_grad_()
    loss = confident_cross_entropy(logits, 1.0)
    loss.backward()
    assert loss == 0
    assert torch.equal(logits.grad, torch.zeros(6, 5).double())


def test_as_confident_as_the_threshold_is_not_enough() -> None:
    logits = torch.zeros(1, 2).double()
    assert confident_cross_entropy(logits, 0.5) == 0
    assert confident_cross_entropy(logits, 0.49) > 0


@settings(max_examples=25, deadline=None)
@given(batches)
def test_information_is_bounded_by_nothing_and_by_all_classes(logits: Tensor) -> None:
    """A mean has at least the entropy of its parts, and at most that of all classes alike."""
    classes = logits.shape[1]
    assert -log(classes) - 1e-9 <= information(logits) <= classes * 1e-5


def test_information_of_a_single_image_is_nothing() -> None:
    close(information(logits_of(1, 1, 5, 2.0)), torch.zeros(()).double(), 1e-4)


@pytest.mark.parametrize("classes", [2, 7])
def test_information_of_sure_answers_for_every_class_is_all_there_is(classes: int) -> None:
    sure = 1000 * torch.eye(classes).double().repeat(3, 1)
    close(information(sure), torch.tensor(-log(classes)).double(), 1e-3)


@pytest.mark.parametrize("settings", [{"label_weight": 0.0}, {"threshold": 1.0}])
def test_shot_without_pseudo_labels_is_shot_im(
    settings: dict[str, float], source: GeneralizeFormer, images: Tensor
) -> None:
    config = shot.Config(learning_rate=1e-3, **settings)
    one = shot.build(source, config)
    other = shot_im.build(source, shot_im.Config(learning_rate=1e-3))
    full = shot.build(source, shot.Config(learning_rate=1e-3, threshold=0.3, label_weight=1.0))
    for batch in images.split(8):
        close(one.step(batch), other.step(batch), 1e-12)
        full.step(batch)
    assert not torch.allclose(full.predict(images), one.predict(images))


# Blocks


@every(WHOLE)
@pytest.mark.parametrize("block", ["blocks.0", "blocks.1", "blocks.1.1"])
def test_only_the_chosen_block_moves(
    block: str, method: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    adapter = method.build(source, eager(method, blocks=(block,)))
    adapter.step(images)
    inside = {n for n, _ in backbone.named_parameters() if n.startswith(f"{block}.")}
    assert moved(adapter, backbone) == (inside & NORM_VALUES if method is tent else inside)
    assert inside


@every(WHOLE)
def test_choosing_all_blocks_is_choosing_none(
    method: Any, source: GeneralizeFormer, backbone: nn.Module, images: Tensor
) -> None:
    names = tuple(name for name, _ in backbone.named_children())
    one, other = (method.build(source, eager(method, blocks=blocks)) for blocks in ((), names))
    for batch in images.split(8):
        assert torch.equal(one.step(batch), other.step(batch))


def test_tent_normalises_every_layer_with_the_batch_whatever_block_moves(
    source: GeneralizeFormer, images: Tensor
) -> None:
    whole, part = (
        tent.build(source, tent.Config(learning_rate=0.0, blocks=blocks))
        for blocks in ((), ("blocks.1",))
    )
    assert torch.equal(part.step(images), whole.step(images))


def test_a_module_used_twice_can_be_named_by_either_name(images: Tensor) -> None:
    shared = nn.Linear(8, 8)
    for name in ("4", "6"):
        adapter: Any = pl.build(
            network(shared, nn.ReLU(), shared), pl.Config(threshold=0.0, blocks=(name,))
        )
        adapter.step(images)
        moving = {n for n, value in adapter.backbone.named_parameters() if value.requires_grad}
        assert moving == {"4.weight", "4.bias"}


@every(WHOLE)
@pytest.mark.parametrize("block", ["block", "blocks.2", "", "classifier.weight"])
def test_a_block_that_is_not_there_is_refused_with_those_that_are(
    method: Any, block: str, source: GeneralizeFormer
) -> None:
    expected = (
        rf"^{name_of(method)}: DigitNet has no block '{block}'; its blocks are blocks, classifier; "
    )
    with pytest.raises(SlotError, match=expected):
        method.build(source, method.Config(blocks=("blocks", block)))


@pytest.mark.parametrize(
    ("method", "block", "missing"),
    [
        (tent, "classifier", "normalisation layer with a scale or shift in classifier"),
        (pl, "blocks.0.2", "parameter in blocks.0.2"),
        (shot, "classifier", "parameter outside its classifier in classifier"),
        (shot_im, "classifier", "parameter outside its classifier in classifier"),
    ],
    ids=name_of,
)
def test_a_block_in_which_nothing_can_move_is_refused(
    method: Any, block: str, missing: str, source: GeneralizeFormer
) -> None:
    expected = rf"^{name_of(method)}: the model has no {missing}, so there is nothing to adapt"
    with pytest.raises(SlotError, match=expected):
        method.build(source, method.Config(blocks=(block,)))


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
