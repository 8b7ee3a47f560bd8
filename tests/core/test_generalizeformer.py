"""The laws of the whole: what reaches φ, what an untrained φ does, and that a lent model stays as it was."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from generalizeformer.core.card import Card
from generalizeformer.core.change import Change
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.guard import Guard
from generalizeformer.core.settings import PAPER, Config
from generalizeformer.core.slots import Kind, Selection
from generalizeformer.errors import DataError, ImageError, UserError

from .nets import (
    EVERYTHING,
    GENERATORS,
    ROWS,
    Net,
    architecture,
    assert_unchanged,
    digits,
    images,
    lived,
    model_of,
    perturb,
    perturbed,
    state,
)

GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])
LABELS = torch.tensor([0, 1, 2, 3, 4, 0])
BOTH = pytest.mark.parametrize("generator", list(GENERATORS))


def small() -> nn.Module:
    """A backbone with a layer of every kind."""
    torch.manual_seed(0)
    return lived(Net())


def target_loss(model: GeneralizeFormer) -> Tensor:
    return nn.functional.cross_entropy(model(images(6), GROUPS), LABELS)


@BOTH
@pytest.mark.parametrize(
    "kinds",
    [("norm", "classifier"), ("norm",), ("classifier",), ("linear",), ("conv",), EVERYTHING.kinds],
    ids="+".join,
)
def test_the_target_loss_reaches_every_parameter_of_the_generator(
    generator: str, kinds: tuple[Kind, ...]
) -> None:
    model = perturbed(small(), GENERATORS[generator], selection=Selection(kinds=kinds))
    target_loss(model).backward()
    missed = [
        name
        for name, value in model.generator.named_parameters()
        if value.grad is None or not value.grad.abs().max() > 0
    ]
    assert not missed


@pytest.mark.parametrize("name", ["role", "layer", "place"])
def test_the_target_loss_reaches_every_embedding_of_the_paper_s_generator(name: str) -> None:
    model = perturbed(architecture("digits"), ROWS)
    target_loss(model).backward()
    grad = model.generator.get_parameter(name).grad
    assert grad is not None
    assert (grad.abs().amax(1) > 0).all()


@BOTH
def test_the_target_loss_reaches_the_generator_through_a_guard(generator: str) -> None:
    model = perturbed(small(), GENERATORS[generator], guard=Guard(limit=1e-3))
    target_loss(model).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.generator.parameters())


@BOTH
@pytest.mark.parametrize("name", ["digits", "torchvision resnet18", "vit_tiny"])
def test_the_target_loss_reaches_no_parameter_of_the_source(generator: str, name: str) -> None:
    backbone = architecture(name)
    size = {"digits": 16, "torchvision resnet18": 48, "vit_tiny": 32}[name]
    model = perturbed(backbone, GENERATORS[generator])
    assert all(p.requires_grad for p in backbone.parameters())
    nn.functional.cross_entropy(model(images(6, size), GROUPS), LABELS).backward()
    assert all(p.grad is None for p in backbone.parameters())
    assert all(p.requires_grad for p in backbone.parameters())


@BOTH
@pytest.mark.parametrize(
    "selection",
    [Selection(), EVERYTHING, *[Selection(kinds=(k,)) for k in EVERYTHING.kinds]],
    ids=lambda selection: "+".join(selection.kinds),
)
def test_an_untrained_generator_gives_the_source_parameters_bit_for_bit(
    generator: str, selection: Selection
) -> None:
    backbone = small()
    model = model_of(backbone, GENERATORS[generator], selection=selection)
    source, target = model.slots.parameters_of(backbone), model.generate(images(6), GROUPS)
    assert target.keys() == source.keys()
    for name, value in target.items():
        assert torch.equal(value, source[name].expand(3, *source[name].shape)), name


@BOTH
def test_an_untrained_model_in_single_precision_generates_the_source_bit_for_bit(
    generator: str,
) -> None:
    backbone = small().float()
    model = model_of(backbone, GENERATORS[generator], selection=EVERYTHING)
    source = model.slots.parameters_of(backbone)
    target = model.generate(images(6, dtype=torch.float32), GROUPS)
    assert all(torch.equal(value, source[n].expand_as(value)) for n, value in target.items())


@BOTH
@pytest.mark.parametrize("loss", ["entropy", "pseudo-label", "memo"])
def test_an_untrained_model_answers_like_the_plain_one(generator: str, loss: str) -> None:
    backbone = digits()
    answers = model_of(backbone, GENERATORS[generator], loss=loss)(images(6), GROUPS)
    torch.testing.assert_close(answers, backbone(images(6)), rtol=0, atol=1e-10)


@BOTH
def test_generated_parameters_are_those_that_answer(generator: str) -> None:
    backbone, x = digits(), images(6)
    model = perturbed(backbone, GENERATORS[generator])
    target = model.generate(x, GROUPS)
    answers = model(x, GROUPS)
    for number, group in enumerate([-2, 4, 9]):
        own = {name: value[number] for name, value in target.items()}
        expected = torch.func.functional_call(backbone, own, (x[group == GROUPS],))
        torch.testing.assert_close(answers[group == GROUPS], expected, rtol=0, atol=1e-8)


def use_forward(model: GeneralizeFormer, folder: Path) -> None:
    model(images(6), GROUPS)


def use_generate(model: GeneralizeFormer, folder: Path) -> None:
    model.generate(images(6), GROUPS)


def use_explain(model: GeneralizeFormer, folder: Path) -> None:
    model.explain(images(6), GROUPS)


def use_backward(model: GeneralizeFormer, folder: Path) -> None:
    model.train()
    target_loss(model).backward()


def use_calibrate(model: GeneralizeFormer, folder: Path) -> None:
    model.calibrate(images(6), GROUPS)


def use_save(model: GeneralizeFormer, folder: Path) -> None:
    model.save_pretrained(folder)


def use_load(model: GeneralizeFormer, folder: Path) -> None:
    model.save_pretrained(folder)
    perturb(GeneralizeFormer.from_pretrained(folder, backbone=model.backbone))(images(6))


@pytest.mark.parametrize(
    "use",
    [use_forward, use_generate, use_explain, use_backward, use_calibrate, use_save, use_load],
    ids=lambda use: use.__name__[4:],
)
@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_the_lent_model_is_bit_for_bit_as_it_was(
    mode: str, use: Callable[[GeneralizeFormer, Path], None], tmp_path: Path
) -> None:
    backbone = digits()
    backbone.train(mode != "eval")
    if mode == "mixed":
        backbone.blocks[1].eval()
        backbone.blocks[2].requires_grad_(False)
    before = state(backbone)
    model = perturbed(backbone, guard=Guard())
    use(model, tmp_path)
    assert_unchanged(backbone, before)


@pytest.mark.parametrize("name", ["torchvision resnet18", "convnext_atto", "vit_tiny"])
def test_big_lent_models_are_as_they_were_too(name: str) -> None:
    backbone = architecture(name)
    size = {"torchvision resnet18": 48, "convnext_atto": 64, "vit_tiny": 32}[name]
    before = state(backbone)
    model = perturbed(backbone)
    model.calibrate(images(4, size))
    nn.functional.cross_entropy(model(images(6, size), GROUPS), LABELS).backward()
    assert_unchanged(backbone, before)


@BOTH
def test_the_mode_of_the_lent_model_does_not_matter(generator: str) -> None:
    class Droppy(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(x, 0.5, self.training))

    torch.manual_seed(0)
    backbone = lived(Droppy())
    model = perturbed(backbone, GENERATORS[generator])
    expected = model(images(6), GROUPS)
    backbone.train()
    assert torch.equal(model(images(6), GROUPS), expected)
    fresh = perturbed(backbone, GENERATORS[generator])
    assert torch.equal(fresh(images(6), GROUPS), expected)


def test_setting_the_mode_of_the_model_sets_that_of_the_generator_only() -> None:
    backbone = digits()
    model = GeneralizeFormer(backbone)
    assert model.train().generator.training
    assert not any(layer.training for layer in backbone.modules())
    backbone.train()
    assert not model.eval().generator.training
    assert all(layer.training for layer in backbone.modules())


@BOTH
def test_training_is_noisy_and_testing_is_not(generator: str) -> None:
    model = perturbed(digits(), GENERATORS[generator])
    assert torch.equal(model(images(6), GROUPS), model(images(6), GROUPS))
    model.train()
    assert not torch.equal(model(images(6), GROUPS), model(images(6), GROUPS))


@BOTH
@pytest.mark.parametrize("loss", ["entropy", "memo"])
@pytest.mark.parametrize("guard", [None, Guard(limit=0.01)], ids=["free", "guarded"])
def test_answers_are_the_same_without_gradients_and_in_inference_mode(
    generator: str, loss: str, guard: Guard | None
) -> None:
    backbone = digits()
    x = images(6)
    expected = perturbed(backbone, GENERATORS[generator], loss=loss, guard=guard)(x, GROUPS)
    for context in (torch.no_grad(), torch.inference_mode()):
        model = perturbed(backbone, GENERATORS[generator], loss=loss, guard=guard)
        with context:
            answers, alone = model(x.clone(), GROUPS.clone()), model(x[:2].clone())
        torch.testing.assert_close(answers, expected.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(alone, model(x[:2]).detach(), rtol=0, atol=1e-10)


@BOTH
def test_inputs_made_in_inference_mode_can_be_trained_on(generator: str) -> None:
    with torch.inference_mode():
        x, groups = images(6), GROUPS.clone()
    model = perturbed(digits(), GENERATORS[generator])
    answers = model(x, groups)
    torch.testing.assert_close(answers, model(images(6), GROUPS), rtol=0, atol=1e-10)
    nn.functional.cross_entropy(answers, LABELS).backward()
    assert all(p.grad is not None for p in model.generator.parameters())


def test_a_model_made_in_inference_mode_answers_there_and_can_be_trained_afterwards() -> None:
    backbone = digits()
    with torch.inference_mode():
        model = model_of(backbone)
        answers = model(images(6), GROUPS)
    assert torch.equal(answers, model(images(6), GROUPS))
    target_loss(perturb(model)).backward()
    assert all(p.grad is not None for p in model.generator.parameters())


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_backbone_made_in_inference_mode_is_refused_and_a_copy_made_outside_is_not(
    kind: str,
) -> None:
    backbone = digits()
    layer = backbone.blocks[0][1]
    with torch.inference_mode():
        if kind == "parameter":
            layer.weight = nn.Parameter(layer.weight.clone())
        else:
            layer.running_var = layer.running_var.clone()
    name = "weight" if kind == "parameter" else "running_var"
    with pytest.raises(UserError, match=rf"^backbone: blocks.0.1.{name} was made in torch.infer"):
        model_of(backbone)
    model_of(copy.deepcopy(backbone))(images(6), GROUPS)


def test_a_model_first_used_in_inference_mode_can_be_trained_afterwards() -> None:
    model = perturbed(digits())
    with torch.inference_mode():
        model.calibrate(images(6))
        model.explain(images(6), GROUPS)
    target_loss(model).backward()
    assert all(p.grad is not None for p in model.generator.parameters())


def test_nothing_is_carried_from_call_to_call() -> None:
    model = perturbed(digits())
    expected = model(images(6), GROUPS)
    model(1e6 * images(4, seed=5))
    model.explain(images(3, seed=6))
    assert torch.equal(model(images(6), GROUPS), expected)


@BOTH
def test_half_precision_models_answer(generator: str) -> None:
    backbone = digits().bfloat16()
    model = perturbed(backbone, GENERATORS[generator])
    answers = model(images(6, dtype=torch.bfloat16), GROUPS)
    assert answers.dtype == torch.bfloat16
    assert answers.isfinite().all()


@BOTH
def test_autocast_answers_nearly_like_full_precision(generator: str) -> None:
    model = perturbed(digits().float(), GENERATORS[generator])
    x = images(6, dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        answers = model(x, GROUPS)
    torch.testing.assert_close(answers.float(), model(x, GROUPS).detach(), rtol=0.2, atol=0.2)


def test_class_names_that_do_not_fit_the_classifier_are_refused() -> None:
    with pytest.raises(DataError, match=r"'classifier' tells 5 classes apart but 2 class names"):
        GeneralizeFormer(digits(), card=Card(classes=("a", "b")))


def test_the_paper_s_configuration_is_the_paper_s() -> None:
    assert (PAPER.generator.kind, PAPER.generator.layers, PAPER.generator.width) == ("rows", 8, 512)
    assert PAPER.selection.kinds == ("norm", "classifier")
    assert PAPER.loss == "entropy"
    assert PAPER.guard is None


@BOTH
def test_an_untrained_model_explains_that_it_moved_nothing(generator: str) -> None:
    change = model_of(digits(), GENERATORS[generator]).explain(images(6), GROUPS)
    for value in (change.distance, change.relative, change.mean_absolute):
        assert value.shape == (3, 5)
        assert not value.any()


def test_an_explanation_is_a_line_per_layer() -> None:
    relative = torch.tensor([[0.1, 0.0], [0.2, 0.001]])
    change = Change(("blocks.0.1", "fc"), relative, relative, relative)
    assert str(change).splitlines() == [
        "layer       moved by, mean of 2 groups",
        "blocks.0.1   15.00 %",
        "fc            0.05 %",
    ]


@BOTH
def test_a_trained_model_explains_how_far_each_layer_was_moved_for_each_group(
    generator: str,
) -> None:
    backbone = digits()
    model = perturbed(backbone, GENERATORS[generator])
    change, target = model.explain(images(6), GROUPS), model.generate(images(6), GROUPS)
    assert change.layers == tuple(slot.layer for slot in model.slots)
    for value in (change.distance, change.relative, change.mean_absolute):
        assert (value > 0).all()
        assert not value.requires_grad
    layer = change.layers.index("blocks.2.1")
    for group in range(3):
        source = backbone.blocks[2][1]
        moved = torch.cat(
            [
                target["blocks.2.1.weight"][group] - source.weight,
                target["blocks.2.1.bias"][group] - source.bias,
            ]
        )
        size = torch.cat([source.weight, source.bias]).norm()
        assert change.distance[group, layer].item() == pytest.approx(moved.norm().item())
        assert change.relative[group, layer].item() == pytest.approx((moved.norm() / size).item())
        assert change.mean_absolute[group, layer].item() == pytest.approx(moved.abs().mean().item())


def test_the_loss_that_was_chosen_is_the_one_that_is_seen() -> None:
    backbone = digits()
    seen = [
        model_of(backbone, loss=loss).observe(images(6), GROUPS).gradients["classifier.weight"]
        for loss in ("entropy", "pseudo-label", "memo")
    ]
    assert not torch.allclose(seen[0], seen[1])
    assert not torch.allclose(seen[0], seen[2])


def test_the_default_model_is_the_channel_generator_over_norms_and_classifier() -> None:
    config = GeneralizeFormer(digits()).config
    assert config == Config()
    assert config.generator.kind == "channels"


@pytest.mark.parametrize("settings", [{"loss": "accuracy"}, {"loss": "memo", "views": 0}])
def test_a_loss_or_number_of_views_that_does_not_exist_is_refused(
    unchecked: None, settings: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match="the losses are entropy, pseudo-label, memo"):
        Config(**settings)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("mirrored", True, r"choose from \(None, 'no', 'group', 'all'\)"),
        ("mirrored", "yes", r"choose from \(None, 'no', 'group', 'all'\)"),
        ("mean", "median", r"choose from \('logits', 'probabilities'\)"),
        ("kin", math.nan, "give a number above 0"),
    ],
)
def test_a_setting_that_is_not_known_is_refused(
    unchecked: None, setting: str, value: Any, words: str
) -> None:
    with pytest.raises(UserError, match=rf"config: {setting} is .*; {words}"):
        Config(**{setting: value})


def test_images_with_the_channels_of_an_inner_layer_are_refused() -> None:
    with pytest.raises(ImageError, match="do not fit"):
        model_of(digits())(images(2, channels=6))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("given", "told"), [("resnet18", "str"), (Net, "the class Net")])
def test_a_name_or_a_class_is_no_backbone(given: Any, told: str) -> None:
    text = rf"backbone: got {told}; give a torch module, such as timm\."
    with pytest.raises(UserError, match=text):
        GeneralizeFormer(given)
