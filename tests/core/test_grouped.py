"""The grouped backbone: every architecture, many groups at once, and a lent model that nobody touched."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from generalizeformer.core.grouped import GroupedBackbone
from generalizeformer.core.groups import grouping
from generalizeformer.core.slots import Selection, find_slots
from generalizeformer.errors import SlotError

from .nets import (
    ARCHITECTURES,
    EVERYTHING,
    GENERATORS,
    KIN,
    ROWS,
    Net,
    architecture,
    by_loop,
    digits,
    images,
    lived,
    model_of,
    perturbed,
    single,
)

GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])
NAMES = list(ARCHITECTURES)


def six(name: str) -> Tensor:
    return images(6, ARCHITECTURES[name][0], seed=7)


def assert_as_by_loop(backbone: nn.Module, x: Tensor, **config: object) -> None:
    """Groups of one, two and three images, answered at once and one by one; and not like the source model."""
    model = perturbed(backbone, **config)
    with torch.no_grad():
        answers, plain = model(x, GROUPS), backbone(x)
    assert (answers - plain).abs().amax() > 1e-4
    torch.testing.assert_close(answers, by_loop(model, x, GROUPS), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_groups_are_answered_as_if_each_came_alone(name: str) -> None:
    assert_as_by_loop(architecture(name), six(name))


@pytest.mark.parametrize("kin", [None, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_groups_are_answered_as_if_each_came_alone_by_the_mean_over_models(
    name: str, kin: float | None
) -> None:
    config = {"strengths": (0.0, 1.0), "singly": True, "mirrored": "all", "kin": kin}
    assert_as_by_loop(architecture(name), six(name), **config)


@pytest.mark.parametrize("name", ["digits", "torchvision resnet18", "vit_tiny"])
def test_the_paper_s_generator_answers_groups_as_if_each_came_alone(name: str) -> None:
    assert_as_by_loop(architecture(name), six(name), generator=ROWS)


@pytest.mark.parametrize("name", ["digits", "regnety_002", "tf_efficientnet_lite0", "vit_tiny"])
def test_groups_with_every_kind_of_layer_generated_are_answered_as_if_each_came_alone(
    name: str,
) -> None:
    assert_as_by_loop(architecture(name), six(name), selection=EVERYTHING)


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_gives_the_same_classes_as_a_loop(name: str) -> None:
    model = perturbed(single(architecture(name)))
    x = six(name).float()
    with torch.no_grad():
        answers = model(x, GROUPS)
    expected = by_loop(model, x, GROUPS)
    assert answers.dtype == torch.float32
    assert torch.equal(answers.argmax(1), expected.argmax(1))
    torch.testing.assert_close(answers, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_an_untrained_model_answers_like_the_plain_one(name: str) -> None:
    backbone, x = architecture(name), six(name)
    with torch.no_grad():
        for ways in ({"singly": False}, {"singly": True}, {"singly": True, "kin": 0.3}):
            answers = model_of(backbone, strengths=(0.0, 1.0), **ways)(x, GROUPS)
            torch.testing.assert_close(answers, backbone(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["digits", "regnety_002", "tf_efficientnet_lite0", "vit_tiny"])
def test_an_untrained_model_of_every_kind_of_layer_answers_like_the_plain_one(name: str) -> None:
    backbone, x = architecture(name), six(name)
    with torch.no_grad():
        answers = model_of(backbone, selection=EVERYTHING)(x, GROUPS)
        torch.testing.assert_close(answers, backbone(x), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=12)
@given(
    groups=st.lists(st.integers(-4, 4), min_size=1, max_size=9),
    generator=st.sampled_from(KIN),
    singly=st.booleans(),
    mirrored=st.sampled_from(["no", "group", "all"]),
)
def test_any_division_into_groups_is_answered_as_if_each_came_alone(
    groups: list[int], generator: tuple[str, float | None], singly: bool, mirrored: str
) -> None:
    name, kin = generator
    ways = {"singly": singly, "mirrored": mirrored, "kin": kin}
    model = perturbed(architecture("digits"), GENERATORS[name], **ways)
    x, ids = images(len(groups)), torch.tensor(groups)
    torch.testing.assert_close(model(x, ids), by_loop(model, x, ids), rtol=0, atol=1e-8)


@pytest.mark.parametrize("generator", list(GENERATORS))
def test_shuffling_the_images_shuffles_the_answers(generator: str) -> None:
    model = perturbed(architecture("digits"), GENERATORS[generator])
    x, order = six("digits"), torch.tensor([3, 5, 0, 4, 1, 2])
    answers = model(x, GROUPS)
    torch.testing.assert_close(model(x[order], GROUPS[order]), answers[order], rtol=0, atol=1e-8)


@pytest.mark.parametrize("generator", list(GENERATORS))
def test_renaming_the_groups_changes_no_answer(generator: str) -> None:
    model, x = perturbed(architecture("digits"), GENERATORS[generator]), six("digits")
    renamed = torch.tensor([0, 10**12, -7, 0, -7, -7])
    torch.testing.assert_close(model(x, renamed), model(x, GROUPS), rtol=0, atol=1e-8)


def others(scale: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Three groups that GROUPS does not have, one of them larger than all of its."""
    return scale * images(7, seed=11, dtype=dtype), torch.tensor([5, 5, 100, 5, -50, 5, 5])


@pytest.mark.parametrize("scale", [1.0, 1e30])
@pytest.mark.parametrize("generator", list(GENERATORS))
def test_other_groups_in_the_call_change_no_answer(generator: str, scale: float) -> None:
    model, x = perturbed(architecture("digits"), GENERATORS[generator]), six("digits")
    more, more_groups = others(scale)
    together = model(torch.cat([more, x]), torch.cat([more_groups, GROUPS]))
    torch.testing.assert_close(together[7:], model(x, GROUPS), rtol=0, atol=1e-8)


@pytest.mark.parametrize("selection", [Selection(), EVERYTHING], ids=["default", "everything"])
@pytest.mark.parametrize("generator", list(GENERATORS))
def test_groups_that_overflow_change_no_answer_of_others(
    generator: str, selection: Selection
) -> None:
    backbone = single(architecture("digits"))
    model = perturbed(backbone, GENERATORS[generator], selection=selection)
    x, (more, more_groups) = six("digits").float(), others(1.0, torch.float32)
    more = more.clamp(-2, 2) * 1.6e38
    together = model(torch.cat([more, x]), torch.cat([more_groups, GROUPS]))
    assert not together[:7].isfinite().all()
    torch.testing.assert_close(together[7:], model(x, GROUPS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", ["pseudo-label", "memo"])
def test_groups_are_kept_apart_whatever_the_loss(loss: str) -> None:
    assert_as_by_loop(architecture("digits"), six("digits"), loss=loss)


def test_one_group_is_the_plain_backbone_with_the_generated_parameters() -> None:
    backbone, x = architecture("regnety_002"), six("regnety_002")
    model = perturbed(backbone, selection=EVERYTHING)
    target = {name: value[0] for name, value in model.generate(x).items()}
    expected = torch.func.functional_call(backbone, target, (x,))
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-8)


def test_a_module_used_in_two_places_stays_one_module() -> None:
    class Twice(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 1)
            self.again = self.norm

        def forward(self, x: Tensor) -> Tensor:
            x = self.again(self.first(x)) + nn.functional.interpolate(
                self.norm(self.conv(x)), x.shape[-2:]
            )
            return self.fc(self.hidden(x.mean((2, 3))).relu())

    torch.manual_seed(0)
    backbone, x = lived(Twice()), images(6)
    slots = find_slots(backbone, Selection(kinds=("norm",)))
    network = GroupedBackbone(backbone, slots)
    params = {n: 1.5 * v.expand(1, -1) for n, v in slots.parameters_of(backbone).items()}
    changed = copy.deepcopy(backbone)
    with torch.no_grad():
        changed.norm.weight.mul_(1.5)
        changed.norm.bias.mul_(1.5)
        answers = network.run(x, grouping(None, 6, x), params).logits
        torch.testing.assert_close(answers, changed(x), rtol=0, atol=1e-8)


def test_the_features_are_what_the_classifier_gets() -> None:
    backbone, x = architecture("digits"), six("digits")
    seen = []
    copied = copy.deepcopy(backbone)
    copied.classifier.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    copied(x)
    torch.testing.assert_close(model_of(backbone).observe(x, GROUPS).features, seen[0])


def test_no_tensor_of_a_call_is_kept_alive_between_calls() -> None:
    model = perturbed(digits())
    model(six("digits"), GROUPS)
    call = model.network.call
    assert call.grouping is None
    assert call.features is None
    assert call.logits is None
    assert call.watched is None
    assert call.params == {}


def test_the_twin_shares_its_tensors_with_the_lent_model() -> None:
    backbone = digits()
    model = perturbed(backbone)
    model(six("digits"))
    lent = {t.data_ptr() for t in [*backbone.parameters(), *backbone.buffers()]}
    twin = model.network.network
    assert {t.data_ptr() for t in [*twin.parameters(), *twin.buffers()]} <= lent


def test_casting_the_model_after_construction_is_followed() -> None:
    backbone = single(architecture("digits"))
    model = perturbed(backbone)
    model(six("digits").float(), GROUPS)
    model.double()
    answers = model(six("digits"), GROUPS)
    fresh = perturbed(backbone)
    fresh.generator.load_state_dict(model.generator.state_dict())
    assert answers.dtype == torch.float64
    torch.testing.assert_close(answers, fresh(six("digits"), GROUPS), rtol=0, atol=1e-10)


def test_training_the_backbone_in_place_is_followed() -> None:
    backbone, x = digits(), six("digits")
    model = perturbed(backbone)
    before = model(x, GROUPS)
    backbone.train()
    optimizer = torch.optim.SGD(backbone.parameters(), 0.1)
    backbone(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    backbone.eval()
    answers = model(x, GROUPS)
    fresh = perturbed(copy.deepcopy(backbone))
    assert (answers - before).abs().amax() > 1e-4
    torch.testing.assert_close(answers, fresh(x, GROUPS), rtol=0, atol=1e-10)


@pytest.mark.parametrize("assign", [False, True])
def test_loading_other_weights_into_the_backbone_is_followed(assign: bool) -> None:
    backbone, x = digits(seed=0), six("digits")
    model = perturbed(backbone)
    model(x, GROUPS)
    other = digits(seed=1)
    backbone.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
    torch.testing.assert_close(model(x, GROUPS), perturbed(other)(x, GROUPS), rtol=0, atol=1e-10)


def test_a_deep_copy_answers_alike() -> None:
    model, x = perturbed(digits()), six("digits")
    expected = model(x, GROUPS)
    assert torch.equal(copy.deepcopy(model)(x, GROUPS), expected)


@pytest.mark.parametrize("part", ["backbone", "generator"])
def test_a_deep_copy_and_its_original_do_not_share_a_fate(part: str) -> None:
    model, x = perturbed(digits()), six("digits")
    expected = model(x, GROUPS)
    copied = copy.deepcopy(model)
    copied(x, GROUPS)
    with torch.no_grad():
        for value in [*copied.get_submodule(part).parameters()]:
            value.mul_(1.5)
        for value in [*copied.get_submodule(part).buffers()]:
            value.mul_(2)
    assert torch.equal(model(x, GROUPS), expected)
    assert (copied(x, GROUPS) - expected).abs().amax() > 1e-4


def test_a_model_that_changes_its_logits_before_returning_them_is_refused() -> None:
    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = digits()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).softmax(1)

    with pytest.raises(SlotError, match="must return the logits of one Linear layer"):
        model_of(Soft())(images(2, dtype=torch.float64))


def test_a_layer_without_running_statistics_is_refused_even_where_it_is_not_generated() -> None:
    backbone = Net(nn.BatchNorm2d(8, track_running_stats=False))
    with pytest.raises(SlotError, match="depend on the others; train with track_running_stats"):
        model_of(backbone, selection=Selection(kinds=("classifier",)))


def test_statistics_are_those_of_every_norm_layer_even_if_only_the_classifier_is_generated() -> (
    None
):
    backbone = digits()
    some = model_of(backbone, selection=Selection(kinds=("classifier",))).observe(images(6), GROUPS)
    every = model_of(backbone).observe(images(6), GROUPS)
    assert list(some.statistics) == list(every.statistics)
    assert len(some.statistics) == 4
    for name, seen in every.statistics.items():
        torch.testing.assert_close(some.statistics[name].mean, seen.mean)
        torch.testing.assert_close(some.statistics[name].variance, seen.variance)


def test_a_layer_that_was_replaced_is_followed() -> None:
    backbone = digits()
    model = model_of(backbone)
    model(images(2))
    backbone.blocks[0][0] = nn.Conv2d(3, 6, 3, 1, 1, bias=False).double()
    torch.testing.assert_close(model(images(2)), backbone(images(2)), rtol=0, atol=1e-10)


def test_a_model_may_ask_its_layers_for_their_weights() -> None:
    class Asking(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.fc.weight.dtype) + 0 * self.norm.eps)

    backbone = lived(Asking(nn.BatchNorm2d(8)))
    torch.testing.assert_close(model_of(backbone)(images(3)), backbone(images(3)))


def test_a_run_that_fails_keeps_no_tensor() -> None:
    model = model_of(digits())
    with pytest.raises(RuntimeError):
        model.network.run(images(2, channels=5), grouping(None, 2, images(2)), {}, watch=True)
    assert model.network.call.grouping is None
    assert model.network.call.watched is None
