"""z_t and g_t: each group's gradients, features and statistics, against a plain model and plain autograd."""

import copy

import pytest
import torch
from torch import Tensor, nn

from generalizeformer.core import statistics
from generalizeformer.core.losses import LOSSES
from generalizeformer.core.statistics import moments
from generalizeformer.core.views import views

from .nets import EVERYTHING, Net, architecture, digits, images, lived, model_of

GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])


def plain_gradients(
    backbone: nn.Module, x: Tensor, loss: str, view_count: int
) -> dict[str, Tensor]:
    plain = copy.deepcopy(backbone).eval()
    seen = views(x, view_count)
    logits = plain(seen.flatten(0, 1)).reshape(*seen.shape[:2], -1)
    value = LOSSES[loss](logits).mean()
    own = dict(plain.named_parameters())
    return dict(zip(own, torch.autograd.grad(value, list(own.values())), strict=True))


@pytest.mark.parametrize("loss", ["entropy", "pseudo-label", "memo"])
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_the_gradients_of_each_group_are_those_of_a_plain_model(loss: str, mode: bool) -> None:
    backbone, x = digits(), images(6)
    backbone.train(mode)
    model = model_of(backbone, selection=EVERYTHING, loss=loss, views=3)
    seen = model.observe(x, GROUPS)
    for number, group in enumerate([-2, 4, 9]):
        expected = plain_gradients(backbone, x[group == GROUPS], loss, 3 if loss == "memo" else 1)
        assert seen.gradients.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                seen.gradients[name][number], value, rtol=1e-8, atol=1e-10, msg=name
            )


@pytest.mark.parametrize("name", ["torchvision resnet18", "convnext_atto", "vit_tiny"])
def test_the_gradients_in_big_models_are_those_of_a_plain_model(name: str) -> None:
    backbone = architecture(name)
    x = images(6, {"torchvision resnet18": 48, "convnext_atto": 64, "vit_tiny": 32}[name])
    seen = model_of(backbone).observe(x, GROUPS)
    for number, group in enumerate([-2, 4, 9]):
        expected = plain_gradients(backbone, x[group == GROUPS], "entropy", 1)
        for own, value in seen.gradients.items():
            torch.testing.assert_close(value[number], expected[own], rtol=1e-6, atol=1e-9)


def test_the_statistics_of_each_group_are_those_of_the_layers_inputs_in_source_units() -> None:
    backbone, x = digits(), images(6)
    plain = copy.deepcopy(backbone)
    norms = {n: m for n, m in plain.named_modules() if isinstance(m, nn.BatchNorm2d)}
    inputs: dict[str, Tensor] = {}
    for name, layer in norms.items():
        layer.register_forward_pre_hook(
            lambda layer, args, name=name: inputs.__setitem__(name, args[0].detach())
        )
    plain(x)
    seen = model_of(backbone).observe(x, GROUPS).statistics
    assert seen.keys() == norms.keys()
    for name, layer in norms.items():
        scale = (layer.running_var + layer.eps).sqrt()
        for number, group in enumerate([-2, 4, 9]):
            own = inputs[name][group == GROUPS].movedim(1, 0).flatten(1)
            mean = (own.mean(1) - layer.running_mean) / scale
            variance = own.var(1, correction=0) / scale.square()
            torch.testing.assert_close(seen[name].mean[number], mean, rtol=0, atol=1e-9)
            torch.testing.assert_close(seen[name].variance[number], variance, rtol=0, atol=1e-9)


def test_the_variance_survives_a_mean_far_from_zero() -> None:
    """E[x²] - E[x]² would lose all digits here, in single precision."""
    torch.manual_seed(0)
    backbone = lived(Net()).float()
    with torch.no_grad():
        backbone.conv.bias.fill_(3000)
    x = images(6, dtype=torch.float32)
    spread = backbone.conv.double()(x.double()).movedim(1, 0).flatten(1).var(1, correction=0)
    backbone.conv.float()
    seen = model_of(backbone).observe(x).statistics["norm"]
    expected = spread / (backbone.norm.running_var + backbone.norm.eps)
    torch.testing.assert_close(seen.variance[0].double(), expected.double(), rtol=1e-3, atol=1e-5)


def test_the_logits_are_those_of_the_source_model() -> None:
    backbone, x = digits(), images(6)
    torch.testing.assert_close(model_of(backbone).observe(x, GROUPS).logits, backbone(x))


def test_nothing_that_is_seen_carries_a_graph() -> None:
    seen = model_of(digits()).observe(images(6), GROUPS)
    tensors = [seen.features, seen.logits, *seen.gradients.values()]
    tensors += [part for s in seen.statistics.values() for part in (s.mean, s.variance)]
    assert not any(tensor.requires_grad for tensor in tensors)


def test_observing_leaves_no_gradient_on_the_images() -> None:
    x = images(6).requires_grad_()
    model_of(digits()).observe(x, GROUPS)
    assert x.grad is None


@pytest.mark.parametrize("shape", [(7, 3, 9, 8), (33, 24, 13, 11), (5, 40, 1, 30), (9, 64, 5)])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("part", [1, 1000, 10**9])
def test_moments_in_parts_are_those_of_the_whole_bit_for_bit(
    shape: tuple[int, ...], last: bool, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x
    space = tuple(range(2, x.dim()))
    mean = x.mean(space, keepdim=True)
    expected = (x - mean).square().mean(space)
    passes: list[int] = []
    in_passes = statistics._in_passes

    def spy(x: Tensor, space: tuple[int, ...]) -> statistics.Statistics:
        passes.append(len(x))
        return in_passes(x, space)

    monkeypatch.setattr(statistics, "PART", part)
    monkeypatch.setattr(statistics, "_in_passes", spy)
    seen = moments(x)
    assert torch.equal(seen.mean, mean.flatten(1))
    assert torch.equal(seen.variance, expected)
    assert sum(passes) == len(x)
    assert (len(passes) == 1) == (part == 10**9)


def test_moments_that_gradients_pass_through_are_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "PART", 1)
    x = images(4).requires_grad_()
    assert "Cat" not in type(moments(x).mean.grad_fn).__name__


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_moments_of_half_precision_are_summed_in_single_precision(
    dtype: torch.dtype, shift: float
) -> None:
    x = (images(3, 24, dtype=torch.float32) + shift).to(dtype)
    seen, exact = moments(x), moments(x.double())
    assert seen.mean.dtype == seen.variance.dtype == torch.float32
    torch.testing.assert_close(seen.mean.double(), exact.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen.variance.double(), exact.variance, rtol=1e-4, atol=1e-5)


def test_a_constant_image_of_half_precision_has_no_variance() -> None:
    assert (moments(torch.full((2, 3, 9, 9), 7.3, dtype=torch.bfloat16)).variance < 1e-3).all()
