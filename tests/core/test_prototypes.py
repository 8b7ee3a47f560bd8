"""Prototypes: what the source shows of each class, and rows that move there."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from generalizeformer.core import generalizeformer as core
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import _rows, channels
from generalizeformer.core.prototypes import Prototypes
from generalizeformer.core.settings import PAPER, Config
from generalizeformer.core.slots import Selection

from .nets import Net, digits, images, lived, model_of

GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])


def blobs(classes: int = 3, each: int = 40) -> tuple[Tensor, Tensor]:
    """Features around one place per class, all of them far from zero; the classes of the rows."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat(each)
    places = 2 * torch.eye(classes, 6, dtype=torch.float64) + 50
    noise = torch.randn(len(labels), 6, generator=generator, dtype=torch.float64)
    return places[labels] + 0.1 * noise, labels


def learned(logits: Tensor, features: Tensor) -> tuple[Prototypes, nn.Linear]:
    classifier = nn.Linear(features.shape[1], logits.shape[1]).double()
    prototypes = Prototypes(classifier)
    prototypes.learn(features, logits, classifier)
    return prototypes, classifier


def answers(prototypes: Prototypes, features: Tensor) -> Tensor:
    return F.linear(features, prototypes.weight, prototypes.bias)  # type: ignore[arg-type]


def test_they_tell_the_classes_apart_from_their_middle() -> None:
    features, labels = blobs()
    told = answers(learned(20 * F.one_hot(labels).double(), features)[0], features)
    assert torch.equal(told.argmax(1), labels)
    right = told[torch.arange(len(labels)), labels]
    assert (right > 0).all()
    assert (told.sum(1) - right < 0).all()


def test_they_are_as_sure_as_the_answers_they_were_learned_from() -> None:
    features, labels = blobs()
    for sure in (3.0, 12.0):
        logits = sure * F.one_hot(labels).double()
        told = answers(learned(logits, features)[0], features)
        apart = [(x - x.mean(1, keepdim=True)).square().mean() for x in (told, logits)]
        torch.testing.assert_close(*apart)


def test_a_class_that_was_not_seen_keeps_the_direction_of_its_row() -> None:
    features, labels = blobs()
    logits = torch.cat([20 * F.one_hot(labels).double(), torch.full((len(labels), 1), -50.0)], 1)
    prototypes, classifier = learned(logits, features)
    rows = classifier.weight.detach()
    own = F.normalize(rows - rows.mean(0), dim=1)
    kept = F.normalize(prototypes.weight, dim=1)  # type: ignore[arg-type]
    torch.testing.assert_close(kept[3], own[3])
    assert (kept[:3] - own[:3]).abs().max() > 0.1


@pytest.mark.parametrize(
    ("features", "logits"),
    [
        (blobs()[0], 20 * torch.eye(3, dtype=torch.float64)[torch.zeros(120, dtype=torch.long)]),
        (blobs()[0], torch.ones(120, 1, dtype=torch.float64)),
        (torch.ones(8, 5, dtype=torch.float64), torch.arange(3.0).double().expand(8, 3)),
    ],
    ids=["one class is seen", "there is one class", "one image, eight times"],
)
def test_images_that_show_no_difference_teach_nothing(features: Tensor, logits: Tensor) -> None:
    prototypes, classifier = learned(logits, features)
    own = torch.cat([classifier.weight, classifier.bias.unsqueeze(1)], 1).detach()
    assert not prototypes.known
    assert torch.equal(prototypes.rows(own), Prototypes(classifier).rows(own))


def test_half_precision_around_them_does_not_reach_what_they_learn() -> None:
    features, labels = blobs()
    logits = 3 * F.one_hot(labels).float()
    alone, _ = learned(logits.double(), features.float().double())
    with torch.autocast("cpu", torch.bfloat16):
        around, _ = learned(logits, features.float())
    torch.testing.assert_close(around.weight.double(), alone.weight, rtol=0, atol=1e-3)  # type: ignore[operator, arg-type]


def test_until_then_the_rows_themselves_stand_in_all_equally_long() -> None:
    model = model_of(digits())
    assert model.prototypes is not None
    classifier = model.backbone.get_submodule(model.slots.classifier)
    own = torch.cat([classifier.weight, classifier.bias.unsqueeze(1)], 1).detach()  # type: ignore[operator, arg-type]
    rows = model.prototypes.rows(own)
    weight = classifier.weight.detach()  # type: ignore[operator]
    expected = F.normalize(weight - weight.mean(0), dim=1) * weight.norm(dim=1).mean()
    torch.testing.assert_close(rows[:, :-1], expected)
    assert not rows[:, -1].any()


def full(model: GeneralizeFormer) -> GeneralizeFormer:
    """φ moves rows all the way to the prototypes and does nothing else."""
    assert isinstance(model.generator, channels.Channels)
    with torch.no_grad():
        model.generator.decode["classifier"][-1].bias[_rows.RECALL] = 100.0  # type: ignore[index]
    return model


def test_rows_that_move_all_the_way_are_the_prototypes() -> None:
    model = full(model_of(digits()))
    model.calibrate(images(6))
    assert model.prototypes is not None
    target = model.generate(images(6), GROUPS)
    for part in ("weight", "bias"):
        moved, there = (target[f"{model.slots.classifier}.{part}"], getattr(model.prototypes, part))
        torch.testing.assert_close(moved, there.expand_as(moved))


def test_a_classifier_without_bias_recalls_rows_only() -> None:
    backbone = digits()
    name = model_of(backbone).slots.classifier
    layer = backbone.get_submodule(name)
    layer.bias = None  # type: ignore[assignment]
    model = full(model_of(backbone))
    model.calibrate(images(6))
    assert model.prototypes is not None
    moved = model.generate(images(6))[f"{name}.weight"]
    torch.testing.assert_close(moved[0], model.prototypes.weight)


def test_an_untrained_phi_answers_like_the_source_model_whatever_was_recalled() -> None:
    backbone, x = digits(), images(6)
    model = model_of(backbone)
    model.calibrate(images(6, seed=3))
    torch.testing.assert_close(model(x, GROUPS), backbone(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [None, torch.tensor([4, 4, 4, 4, 4, 9])])
def test_many_images_are_looked_at_in_pieces(
    monkeypatch: pytest.MonkeyPatch, groups: Tensor | None
) -> None:
    """Also where pieces cut through groups, which count alike whatever their sizes."""
    torch.manual_seed(0)
    backbone = lived(Net(nn.LayerNorm(8), tokens=True))
    whole, pieces = model_of(backbone), model_of(backbone)
    whole.calibrate(images(6), groups)
    monkeypatch.setattr(core, "AT_ONCE", 2)
    pieces.calibrate(images(6), groups)
    assert whole.reference.layers
    for part in ("prototypes", "reference"):
        expected, got = getattr(whole, part).state_dict(), getattr(pieces, part).state_dict()
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "config",
    [
        PAPER,
        Config(generator=channels.Config(recall=0.0)),
        Config(generator=channels.Config(inputs=("gradients",))),
        Config(selection=Selection(kinds=("norm",))),
    ],
)
def test_who_recalls_nothing_keeps_no_prototypes(config: Config) -> None:
    model = GeneralizeFormer(digits(), replace(config, strengths=(1.0,)))
    assert model.prototypes is None
    assert not [name for name in model.state_dict() if name.startswith("prototypes")]
