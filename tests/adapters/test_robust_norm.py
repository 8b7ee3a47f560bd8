"""RoTTA's statistics: how far they follow a batch, and what is normalised with them."""

import copy

import pytest
import torch
from teaching import assert_close, net
from torch import Tensor, nn

from generalizeformer.adapters._robust_norm import following, make_robust, robust_norms


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False)])
def test_following_all_the_way_is_batch_statistics_and_has_its_gradients(
    norm: nn.Module, images: Tensor
) -> None:
    backbone = net(norm=norm).backbone
    robust = copy.deepcopy(backbone)
    make_robust(robust, 1.0, "rotta")
    backbone.train()
    answers, gradients = [], []
    with following(robust):
        for network in (backbone, robust):
            answers.append(network(images))
            gradients.append(torch.autograd.grad(answers[-1].square().mean(), network[0].weight)[0])
    assert_close(answers[1], answers[0])
    assert_close(gradients[1], gradients[0])
    assert not any(layer.following for layer in robust_norms(robust))


def test_statistics_move_their_share_and_normalise_as_moved() -> None:
    norm = nn.BatchNorm2d(2).double()
    norm.running_mean.copy_(torch.tensor([1.0, -1.0]))
    norm.running_var.copy_(torch.tensor([4.0, 0.5]))
    network = nn.Sequential(norm)
    make_robust(network, 0.25, "rotta")
    x = torch.tensor([[0.0, 8.0], [2.0, 2.0]]).double().reshape(2, 2, 1, 1).repeat(1, 1, 3, 3)
    with following(network):
        y = network(x)
    mean = torch.tensor([0.75 * 1 + 0.25 * 1, 0.75 * -1 + 0.25 * 5]).double()
    variance = torch.tensor([0.75 * 4 + 0.25 * 1, 0.75 * 0.5 + 0.25 * 9]).double()
    assert_close(norm.running_mean, mean)
    assert_close(norm.running_var, variance)
    expected = (x - mean.reshape(2, 1, 1)) / (variance + 1e-5).sqrt().reshape(2, 1, 1)
    assert_close(y, expected)
    assert_close(network(x), expected)  # what follows no more keeps them
    assert_close(norm.running_mean, mean)


def test_robust_layers_give_back_what_they_are_given_in_lower_precision(images: Tensor) -> None:
    network = nn.Sequential(nn.BatchNorm2d(3)).eval()
    expected = network(images.bfloat16())
    make_robust(network, 0.0, "rotta")
    assert torch.equal(network(images.bfloat16()), expected)
    with following(network):
        moved = network(images.bfloat16())
    assert moved.dtype == torch.bfloat16
    torch.testing.assert_close(moved, expected)


def test_a_layer_used_twice_is_replaced_in_both_places(images: Tensor) -> None:
    norm = nn.BatchNorm2d(3).double()
    network = nn.Sequential(norm, nn.ReLU(), norm).eval()
    expected = network(images)
    make_robust(network, 0.5, "rotta")
    assert network[0] is network[2]
    assert len(robust_norms(network)) == 1
    assert_close(network(images), expected)
