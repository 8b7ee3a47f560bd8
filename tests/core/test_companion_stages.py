"""Where stages end, and what mixing styles does."""

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import densenet121
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from generalizeformer.core.backbones import DigitNet
from generalizeformer.core.companions._stages import find_stages
from generalizeformer.core.companions._styles import Mixing, draw_mixing, mix_styles

from .nets import images


def names(backbone: nn.Module, size: int, most: int = 4) -> list[str]:
    return [s.name for s in find_stages(backbone, images(2, size, dtype=torch.float32), most)]


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_stages_of_a_resnet_are_its_four_layers(block: type[BasicBlock | Bottleneck]) -> None:
    found = find_stages(
        ResNet(block, [1, 1, 1, 2]), images(1, 64, dtype=torch.float32), 4
    )  # a Bottleneck's ReLU runs at two resolutions
    assert [stage.name for stage in found] == ["layer1", "layer2", "layer3", "layer4"]
    widths = [block.expansion * width for width in (64, 128, 256, 512)]
    assert [stage.shape for stage in found] == [
        (width, size, size) for width, size in zip(widths, (16, 8, 4, 2), strict=True)
    ]


def test_stages_end_before_the_resolution_changes_inside_a_module() -> None:
    found = names(densenet121(num_classes=2), 64)
    assert found == [f"features.denseblock{number}" for number in (1, 2, 3)] + ["features"]


def test_only_the_last_resolutions_count_and_pooled_ones_do_not() -> None:
    squeezed = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1), nn.Flatten())
    backbone = nn.Sequential(DigitNet(5, (4, 4, 6, 6), 3).blocks, squeezed, nn.Linear(6, 5))
    assert names(backbone, 16) == ["0.0", "0.2", "0"]
    assert names(backbone, 16, most=2) == ["0.2", "0"]


def test_maps_whose_channels_lie_last_are_no_resolution() -> None:
    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.permute(0, 2, 3, 1)

    backbone = nn.Sequential(nn.Conv2d(3, 4, 3, 2), Last(), nn.Flatten(), nn.Linear(196, 5))
    assert names(backbone, 16) == ["0"]


def test_a_network_without_convolutions_has_no_stages() -> None:
    assert names(nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), 4) == []


def test_looking_for_stages_leaves_the_network_as_it_was() -> None:
    backbone = DigitNet(5, (4, 6), 3).train()
    backbone.blocks[0].eval()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    modes = [module.training for module in backbone.modules()]
    names(backbone, 16)
    assert [module.training for module in backbone.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert not any(module._forward_hooks for module in backbone.modules())


def mixing(shares: float, partners: list[int]) -> Mixing:
    count = len(partners)
    return Mixing(0, torch.full((count,), shares).double(), torch.tensor(partners))


@pytest.mark.parametrize(("count", "mixed"), [(1, mixing(0.3, [0])), (3, mixing(1.0, [2, 0, 1]))])
def test_alone_or_with_all_of_its_own_style_an_image_stays_as_it_is(
    count: int, mixed: Mixing
) -> None:
    maps = images(count, 6)
    torch.testing.assert_close(mix_styles(maps, mixed), maps, rtol=0, atol=1e-12)


def test_without_a_share_of_its_own_an_image_has_the_partner_s_style() -> None:
    maps, partners = images(3, 6) * torch.tensor([1.0, 2, 3]).reshape(3, 1, 1, 1), [2, 0, 1]
    got = mix_styles(maps, mixing(0.0, partners))
    torch.testing.assert_close(got.mean((2, 3)), maps[partners].mean((2, 3)))
    torch.testing.assert_close(got.std((2, 3)), maps[partners].std((2, 3)), rtol=1e-4, atol=0)
    correlation = ((got - got.mean((2, 3), True)) * (maps - maps.mean((2, 3), True))).mean((2, 3))
    torch.testing.assert_close(
        correlation / got.std((2, 3), False) / maps.std((2, 3), False),
        torch.ones(3, 3).double(),
    )


def test_no_gradient_flows_through_styles() -> None:
    maps = images(3, 6).requires_grad_()
    mixed = mixing(0.25, [1, 2, 0])
    (gradient,) = torch.autograd.grad(mix_styles(maps, mixed).sum(), maps)
    spread = (maps.var((2, 3)) + 1e-6).sqrt()
    expected = (0.25 * spread + 0.75 * spread[[1, 2, 0]]) / spread
    torch.testing.assert_close(gradient, expected[..., None, None].expand_as(maps))


def test_half_precision_is_not_lost_on_channels_that_are_nearly_constant() -> None:
    maps = 3 + 1e-2 * images(2, 8)
    got = mix_styles(maps.bfloat16(), mixing(0.5, [1, 0]))
    assert got.dtype == torch.bfloat16
    expected = mix_styles(maps.bfloat16().double(), mixing(0.5, [1, 0]))
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=0.01)


def test_mixings_are_drawn_from_the_generator_alone() -> None:
    shown = images(2000, 1)
    one, other = (draw_mixing(shown, torch.Generator().manual_seed(5)) for _ in range(2))
    assert one.stage == other.stage
    assert torch.equal(one.shares, other.shares)
    assert torch.equal(one.partners, other.partners)
    assert sorted(one.partners.tolist()) == list(range(2000))
    # Beta(0.1, 0.1): mostly near 0 or 1, and both alike.
    assert one.shares.mean() == pytest.approx(0.5, abs=0.05)
    assert one.shares.var() == pytest.approx(0.25 / 1.2, abs=0.02)
    generator = torch.Generator().manual_seed(0)
    stages = [draw_mixing(shown[:2], generator).stage for _ in range(200)]
    assert stages.count(0) + stages.count(1) == 200
    assert 70 < stages.count(0) < 130
