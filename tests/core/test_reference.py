"""Source statistics of layers that keep none of their own."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .nets import Net, architecture, images, lived, model_of, perturb

GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])


def layer_norm_net() -> nn.Module:
    torch.manual_seed(0)
    return lived(Net(nn.LayerNorm(8), tokens=True))


def normalised(backbone: nn.Module, x: Tensor) -> Tensor:
    """What the affine part of the norm layer gets, (images, tokens, channels)."""
    return F.layer_norm(backbone.conv(x).flatten(2).mT, (8,), eps=backbone.norm.eps).detach()


def test_batch_norm_brings_its_own_and_needs_no_reference() -> None:
    model = model_of(architecture("digits"))
    assert not dict(model.reference.named_buffers())


def test_before_calibration_statistics_are_in_the_layer_s_own_units() -> None:
    backbone, x = layer_norm_net(), images(6)
    seen = model_of(backbone).observe(x).statistics["norm"]
    own = normalised(backbone, x).flatten(0, 1)
    torch.testing.assert_close(seen.mean[0], own.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen.variance[0], own.var(0, correction=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [None, torch.tensor([0, 0, 1, 1, 2, 2])])
def test_after_calibration_the_source_images_have_mean_zero_and_variance_one(
    groups: Tensor | None,
) -> None:
    model, x = model_of(layer_norm_net()), images(6)
    model.calibrate(x, groups)
    seen = model.observe(x).statistics["norm"]
    torch.testing.assert_close(seen.mean[0], torch.zeros(8).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(seen.variance[0], torch.ones(8).double(), rtol=0, atol=1e-4)


def test_calibrating_changes_what_a_trained_model_answers() -> None:
    model, x = perturb(model_of(layer_norm_net())), images(6)
    before = model(x, GROUPS)
    model.calibrate(3 * images(6, seed=4))
    assert (model(x, GROUPS) - before).abs().amax() > 1e-6


def test_calibrating_twice_on_the_same_images_is_calibrating_once() -> None:
    model = model_of(layer_norm_net())
    model.calibrate(images(6))
    once = {name: value.clone() for name, value in model.reference.named_buffers()}
    model.calibrate(images(6))
    assert once
    assert all(torch.equal(model.reference.get_buffer(name), once[name]) for name in once)


def test_calibration_is_part_of_the_state_of_the_model() -> None:
    model = model_of(layer_norm_net())
    model.calibrate(images(6))
    other = model_of(layer_norm_net())
    other.load_state_dict(model.state_dict())
    mine, theirs = (m.observe(images(3)).statistics["norm"].mean for m in (model, other))
    assert torch.equal(mine, theirs)
