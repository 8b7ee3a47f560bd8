import pytest
import torch
from recordings import toy_network
from torch import Tensor, nn

from generalizeformer import catalog
from generalizeformer.core.backbones import DigitNet
from generalizeformer.core.generalizeformer import GeneralizeFormer


@pytest.fixture
def backbone(images: Tensor) -> nn.Module:
    """A small float64 network, its statistics and affine parts other than 0 and 1, its answers varied."""
    torch.manual_seed(1)
    network = DigitNet(5, (8, 12), channels=3).double()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean, 0, 0.2)
            nn.init.uniform_(layer.running_var, 0.3, 1.5)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, 0, 0.3)
    network.eval()
    with torch.no_grad():  # rows blind to what all images have in common tell them apart
        common = network.blocks(images).mean((0, 2, 3))
        rows = torch.randn_like(network.classifier.weight) * 4
        rows -= torch.outer(rows @ common / common.square().sum(), common)
        network.classifier.weight.copy_(rows)
    return network


@pytest.fixture
def source(backbone: nn.Module) -> GeneralizeFormer:
    """The network with a φ that moves: a fresh one would answer like the source, and could hide mistakes."""
    torch.manual_seed(2)
    model = GeneralizeFormer(backbone).eval()
    with torch.no_grad():
        for value in model.generator.parameters():
            value.add_(torch.randn_like(value) * 0.1)
    names = catalog.names("generalizeformer.core.companions")
    model.companions = {name: trained_for(name, model) for name in names}
    return model


def trained_for(method: str, model: GeneralizeFormer) -> dict[str, Tensor]:
    """A companion as if trained: every number moved but the backbone's own statistics, whose variances are positive."""
    built = catalog.load("generalizeformer.core.companions", method).build(
        model.backbone, model.classes
    )
    return {
        name: value + 0.1 * torch.randn_like(value)
        if value.is_floating_point() and "running_" not in name
        else value
        for name, value in built.state_dict().items()
    }


@pytest.fixture
def images() -> Tensor:
    """24 images of different brightness and contrast."""
    torch.manual_seed(3)
    scale, shift = 0.5 + torch.rand(24, 3, 1, 1), torch.randn(24, 3, 1, 1)
    return (torch.randn(24, 3, 16, 16) * scale + shift).double()


@pytest.fixture
def toy() -> GeneralizeFormer:
    """The network of the recorded numbers, with a fresh φ."""
    return GeneralizeFormer(toy_network())
