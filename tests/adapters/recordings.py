"""The toy network of the recorded numbers, the numbers, and how near ours have to be (traces/README.md)."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

TRACES = Path(__file__).parent / "traces"
NORMS = ("bn1", "bn2", "bn3")


class ToyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, 2, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 32, 3, 2, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)).relu()
        x = self.bn3(self.conv3(x)).relu()
        return self.fc(x.mean((2, 3)))


def recorded(name: str) -> dict[str, Tensor]:
    values = load_file(TRACES / f"{name}.safetensors")
    return {k: v.double() if v.is_floating_point() else v for k, v in values.items()}


def stream_of(variant: str) -> Tensor:
    return recorded("stream")["bs1" if variant.endswith("bs1") else "bs8"]


def assert_agree(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)


def toy_network() -> ToyNet:
    """The network as it was recorded, in float64."""
    network = ToyNet()
    network.load_state_dict(load_file(TRACES / "backbone.safetensors"))
    return network.double()
