"""MetaNorm: statistics inferred from each image, around a network that starts as the source model."""

import copy
from typing import Any

import pytest
import torch
from recordings import toy_network
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.ops import FrozenBatchNorm2d

from generalizeformer.adapters import metanorm
from generalizeformer.core.companions._gaussian import Gaussian
from generalizeformer.core.companions.metanorm import InferredNorm, build
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.normalisers import source_scale
from generalizeformer.errors import SlotError


def network(*norms: nn.Module) -> nn.Module:
    torch.manual_seed(4)
    before, *after = norms
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        before,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *after,
        nn.Linear(8, 5),
    ).double()


def moved(untrained: nn.Module) -> Any:
    """A network that infers something."""
    torch.manual_seed(5)
    with torch.no_grad():
        for value in untrained.parameters():
            value.add_(0.2 * torch.randn_like(value))
    return untrained.eval()


# The divergence


def test_the_divergence_is_zero_for_equals_and_only_for_them() -> None:
    torch.manual_seed(0)
    mean, variance = torch.randn(50).double(), torch.rand(50).double() + 0.1
    one = Gaussian(mean, variance)
    assert_close(one.divergence_from(Gaussian(mean, variance), 1e-5), torch.zeros(50).double())
    assert (one.divergence_from(Gaussian(mean + 0.1, variance), 1e-5) > 1e-4).all()
    assert (one.divergence_from(Gaussian(mean, 1.2 * variance), 1e-5) > 1e-4).all()
    assert (one.divergence_from(Gaussian(mean, 0.8 * variance), 1e-5) > 1e-4).all()


def test_the_divergence_is_that_of_torch_with_its_square() -> None:
    torch.manual_seed(0)
    one, other = (Gaussian(torch.randn(9).double(), torch.rand(9).double() + 0.1) for _ in "ab")
    expected = torch.distributions.kl_divergence(
        *(torch.distributions.Normal(g.mean, g.variance.sqrt()) for g in (one, other))
    )
    assert_close(one.divergence_from(other, 0.0), expected)


# The network


@pytest.mark.parametrize(
    "norms",
    [
        (nn.BatchNorm2d(8),),
        (nn.BatchNorm2d(8, affine=False),),
        (FrozenBatchNorm2d(8),),
        (nn.Identity(), nn.BatchNorm1d(8)),
    ],
)
def test_untrained_it_is_the_backbone(norms: tuple[nn.Module, ...], images: Tensor) -> None:
    backbone = network(*norms)
    for layer in backbone.modules():
        if hasattr(layer, "running_var"):
            nn.init.normal_(layer.running_mean, 0, 0.3)
            nn.init.uniform_(layer.running_var, 0.3, 2)
    built = build(backbone, 5).eval()
    assert any(isinstance(layer, InferredNorm) for layer in built.modules())
    assert_close(built(images), backbone.eval()(images))
    assert_close(built.usual(images), backbone(images))


def test_building_leaves_the_backbone_and_the_caller_s_random_numbers_alone() -> None:
    backbone = toy_network()
    before, kinds = copy.deepcopy(backbone.state_dict()), [type(m) for m in backbone.modules()]
    torch.manual_seed(9)
    first = build(backbone, 5).state_dict()
    drawn = torch.rand(3)
    torch.manual_seed(9)
    assert torch.equal(torch.rand(3), drawn)
    second = build(backbone, 5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert [type(m) for m in backbone.modules()] == kinds
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_statistics_come_from_the_image_s_own_positions_in_source_units(images: Tensor) -> None:
    built = moved(build(network(nn.BatchNorm2d(8)), 5))
    layer = next(m for m in built.modules() if isinstance(m, InferredNorm))
    x = torch.randn(3, 8, 4, 5).double()
    mean, scale = source_scale(layer.layer, "")
    got = layer.infer(x)
    for image in range(3):
        units = [(x[image, :, i, j] - mean) * scale for i in range(4) for j in range(5)]
        said = torch.stack([layer.centre.say(layer.centre.look(u).relu()) for u in units]).mean(0)
        assert_close(got.mean[image], mean + said / scale)
        squares = [(u - said).square() for u in units]
        said = torch.stack([layer.spread.say(layer.spread.look(s).relu()) for s in squares]).mean(0)
        assert_close(got.variance[image], layer.layer.running_var * (5 * (said / 5).tanh()).exp())


def test_variances_stay_positive_and_finite_for_wild_images() -> None:
    built = moved(build(network(nn.BatchNorm2d(8)), 5))
    layer = next(m for m in built.modules() if isinstance(m, InferredNorm))
    for scale in (1e-6, 1.0, 1e6):
        variance = layer.infer(scale * torch.randn(4, 8, 3, 3).double()).variance
        assert (variance > 0.005).all()
        assert (variance < 200).all()


def test_answers_are_those_of_the_inferred_statistics(images: Tensor) -> None:
    built = moved(build(network(nn.BatchNorm2d(8)), 5))
    convolution, layer, *rest = built.backbone
    x = convolution(images)
    own, norm = layer.infer(x), layer.layer
    y = (x - own.mean[:, :, None, None]) / (own.variance[:, :, None, None] + norm.eps).sqrt()
    y = y * norm.weight[:, None, None] + norm.bias[:, None, None]
    assert_close(built(images), nn.Sequential(*rest)(y))


def test_it_is_compared_with_the_statistics_of_all_images_together(images: Tensor) -> None:
    built = moved(build(network(nn.BatchNorm2d(8)), 5))
    x = built.backbone[0](images)
    everyone = Gaussian(x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0))
    expected = built.backbone[1].infer(x).divergence_from(everyone, 1e-5).mean()
    logits, divergence = built.compared(images)
    assert_close(divergence, expected)
    assert torch.equal(logits, built(images))
    copy.deepcopy(built)  # nothing of a run is left behind


def test_every_channel_counts_alike_in_the_divergence_however_wide_its_layer(
    images: Tensor,
) -> None:
    """And wide networks are pulled no more than narrow ones."""
    wide = (nn.Linear(8, 24), nn.BatchNorm1d(24), nn.Linear(24, 8))
    built = moved(build(network(nn.BatchNorm2d(8), *wide), 5))
    built.call.divergences = parts = []
    built(images)
    assert [len(part) for part in parts] == [8, 24]
    assert_close(built.compared(images)[1], torch.cat(parts).mean())


def test_usual_statistics_move_in_training_and_inferred_ones_do_not(images: Tensor) -> None:
    built = build(network(nn.BatchNorm2d(8)), 5).train()
    before = built.backbone[1].layer.running_mean.clone()
    built(images)
    built.compared(images)
    assert torch.equal(built.backbone[1].layer.running_mean, before)
    built.usual(images)
    assert not torch.equal(built.backbone[1].layer.running_mean, before)


def test_a_layer_used_in_two_places_stays_one() -> None:
    norm = nn.BatchNorm2d(3)
    backbone = nn.Sequential(norm, nn.ReLU(), norm, nn.Flatten(), nn.Linear(3 * 256, 5))
    built = build(backbone, 5)
    assert built.backbone[0] is built.backbone[2]
    assert isinstance(built.backbone[0], InferredNorm)


# The adapter


def test_an_image_is_answered_alike_alone_and_in_company(
    source: GeneralizeFormer, images: Tensor
) -> None:
    adapter = metanorm.build(source, metanorm.Config())
    together = adapter.predict(images)
    alone = torch.cat([adapter.predict(image) for image in images.split(1)])
    assert_close(alone, together, rtol=0, atol=1e-10)
    assert (together - source.backbone.eval()(images)).abs().max() > 1e-2


def test_what_the_model_carries_is_left_as_it_is(source: GeneralizeFormer, images: Tensor) -> None:
    before = {name: value.clone() for name, value in source.companions["metanorm"].items()}
    metanorm.build(source, metanorm.Config()).step(images)
    after = source.companions["metanorm"]
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_model_that_was_not_trained_for_it_is_refused(backbone: nn.Module) -> None:
    expected = "^metanorm: this model was not trained for it; train one with .*--also metanorm"
    with pytest.raises(SlotError, match=expected):
        metanorm.build(GeneralizeFormer(backbone), metanorm.Config())


@pytest.mark.parametrize("norm", [nn.Identity(), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8)])
def test_networks_without_batch_norm_are_refused(norm: nn.Module) -> None:
    expected = "^metanorm: Sequential has no BatchNorm layer, .*; try t3a or generalizeformer$"
    with pytest.raises(SlotError, match=expected):
        build(network(norm), 5)


def test_what_only_looks_like_batch_norm_is_refused() -> None:
    class Doubled(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    with pytest.raises(SlotError, match=r"^metanorm: 1 is a Doubled, which does not .*; try t3a$"):
        build(network(Doubled(8)), 5)
