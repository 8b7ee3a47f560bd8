"""Answers are a mean over models: at several strengths, of the group and of each image, on the mirror image."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.mixture import mixture
from generalizeformer.core.settings import Config

from .nets import GENERATORS, KIN, digits, images, model_of, perturbed

GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])
BOTH = pytest.mark.parametrize("generator", list(GENERATORS))
WITH_KIN = pytest.mark.parametrize(("generator", "kin"), KIN)
MEANS = pytest.mark.parametrize("mean", ["logits", "probabilities"])


def averaged(parts: list[Tensor], mean: str) -> Tensor:
    """Probabilities of the mean over these logits."""
    if mean == "logits":
        return torch.stack(parts).mean(0).softmax(-1)
    return torch.stack([part.softmax(-1) for part in parts]).mean(0)


@MEANS
@BOTH
def test_answers_are_averaged_over_the_strengths(generator: str, mean: str) -> None:
    backbone, x = digits(), images(6)
    model = perturbed(backbone, GENERATORS[generator], mean=mean)
    alone = []
    for strength in (0.5, 1.0):
        model.config = replace(model.config, strengths=(strength,))
        alone.append(model(x, GROUPS))
    model.config = replace(model.config, strengths=(0.0, 0.5, 1.0))
    expected = averaged([backbone(x), *alone], mean)
    torch.testing.assert_close(model(x, GROUPS).softmax(-1), expected, rtol=0, atol=1e-10)
    assert (alone[0].softmax(-1) - alone[1].softmax(-1)).abs().max() > 1e-4


@BOTH
def test_an_untrained_generator_is_the_source_model_at_any_strengths(generator: str) -> None:
    backbone = digits()
    for mean in ("logits", "probabilities"):
        config = {"strengths": (0.0, 0.5, 1.5), "mean": mean}
        answers = model_of(backbone, GENERATORS[generator], **config)(images(6), GROUPS)
        torch.testing.assert_close(answers, backbone(images(6)), rtol=0, atol=1e-12)
        alone = model_of(backbone)(images(6), GROUPS)
        # A layer that settles rounds in another order than the source's.
        torch.testing.assert_close(
            answers, alone, rtol=0, atol=1e-15 * (generator in ("settling", "varying"))
        )


@pytest.mark.parametrize("strengths", [(), (0.0,), (-0.5, 1.0), (0.0, math.nan), (0.0, math.inf)])
def test_strengths_without_a_generated_model_are_refused(strengths: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"strengths are .*; give numbers from 0"):
        Config(strengths=strengths)


def test_images_are_also_answered_by_models_of_their_own() -> None:
    backbone, x = digits(), images(6)
    model = perturbed(backbone, strengths=(0.0, 1.0), mean="probabilities")
    together, each = model(x, GROUPS).softmax(-1), model(x, torch.arange(6)).softmax(-1)
    model.config = replace(model.config, singly=True)
    expected = (2 * together + 2 * each - backbone(x).softmax(-1)) / 3  # the source's is in both
    torch.testing.assert_close(model(x, GROUPS).softmax(-1), expected, rtol=0, atol=1e-10)
    assert (together - each).abs().max() > 1e-6


@WITH_KIN
def test_an_image_alone_is_answered_as_a_group_of_one_beside_larger_ones(
    generator: str, kin: float | None
) -> None:
    model, x = perturbed(digits(), GENERATORS[generator], singly=True, kin=kin), images(6)
    groups = torch.tensor([4, 4, 2, 4, 4, 4])
    torch.testing.assert_close(model(x, groups)[2], model(x[2:3])[0], rtol=0, atol=1e-10)


@BOTH
def test_groups_pooled_from_images_are_seen_as_groups(generator: str) -> None:
    model, x = perturbed(digits(), GENERATORS[generator]), images(6)
    seen = model.observe(x, GROUPS)
    pooled = model.observe(x, torch.arange(6)).pooled(seen.grouping)
    for name, expected in seen.statistics.items():
        torch.testing.assert_close(pooled.statistics[name].mean, expected.mean)
        torch.testing.assert_close(pooled.statistics[name].variance, expected.variance)
    for name, gradient in seen.gradients.items():
        torch.testing.assert_close(pooled.gradients[name], gradient)


@WITH_KIN
def test_an_untrained_generator_is_the_source_model_singly_too(
    generator: str, kin: float | None
) -> None:
    backbone = digits()
    model = model_of(backbone, GENERATORS[generator], strengths=(0.0, 1.0), singly=True, kin=kin)
    alone = model_of(backbone)(images(6), GROUPS)
    exact = 1e-15 * (generator in ("settling", "varying"))
    torch.testing.assert_close(model(images(6), GROUPS), alone, rtol=0, atol=exact)


@MEANS
@BOTH
def test_mirrored_images_are_answered_as_well(generator: str, mean: str) -> None:
    backbone, x, each = digits(), images(6), torch.arange(6)
    config = {"strengths": (0.0, 1.0), "singly": True, "mean": mean}
    model = perturbed(backbone, GENERATORS[generator], **config)
    parts = [backbone(x), _run(model, x, GROUPS, x), _run(model, x, GROUPS, x.flip(-1))]
    parts += [_run(model, x, each, x), _run(model, x, each, x.flip(-1))]
    for who, answering in (("group", parts[:-1]), ("all", parts)):
        model.config = replace(model.config, mirrored=who)
        expected = averaged(answering, mean)
        torch.testing.assert_close(model(x, GROUPS).softmax(-1), expected, rtol=0, atol=1e-10)
        one = model(x[:1]).softmax(-1)
        torch.testing.assert_close(model(x, each).softmax(-1)[:1], one, rtol=0, atol=1e-10)


def _run(model: GeneralizeFormer, x: Tensor, groups: Tensor, shown: Tensor) -> Tensor:
    """Logits of what is shown under the models generated for the groups of x."""
    seen = model.observe(x, groups)
    parameters = model.generator(model.slots.parameters_of(model.backbone), seen)
    return model.network.run(shown, seen.grouping, parameters).logits


@WITH_KIN
def test_every_part_of_the_mean_teaches_phi_and_nothing_else(
    generator: str, kin: float | None
) -> None:
    backbone = digits().requires_grad_()
    ways = {"strengths": (0.0, 1.0), "singly": True, "mirrored": "all", "kin": kin}
    model = perturbed(backbone, GENERATORS[generator], **ways)
    F.cross_entropy(model(images(6), GROUPS), torch.tensor([0, 1, 2, 3, 4, 0])).backward()
    without = [
        n for n, v in model.generator.named_parameters() if v.grad is None or not v.grad.any()
    ]
    assert not without
    assert all(value.grad is None for value in backbone.parameters())


def test_under_autocast_the_mean_of_logits_keeps_its_digits() -> None:
    answers = [torch.tensor([[value, 1.0]]).bfloat16() for value in (3.0, 3.015625)]
    with torch.autocast("cpu", torch.bfloat16):
        mean = mixture(answers)
    torch.testing.assert_close(mean, torch.tensor([[3.0078125, 1.0]]), rtol=0, atol=0)
    assert mixture(answers).dtype == torch.bfloat16  # a model in half precision answers in it
