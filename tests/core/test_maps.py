"""Kernels over feature maps, and which maps and layers they serve."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from generalizeformer.core import maps
from generalizeformer.core.maps import Act
from generalizeformer.core.normalisers import folded


def test_kernels_answer_like_pytorchs_operations() -> None:
    pytest.importorskip("triton")
    file = Path(__file__).with_name("interpreted.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


class WithAct(nn.BatchNorm2d):
    """Carries its activation, as timm's do."""

    def __init__(self, drop: nn.Module, act: nn.Module) -> None:
        super().__init__(3)
        self.drop, self.act = drop, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))  # type: ignore[no-any-return]


def test_activations_that_kernels_know_are_folded_into_norm_layers() -> None:
    assert folded(WithAct(nn.Identity(), nn.ReLU6())) is Act.RELU6
    assert folded(WithAct(nn.Identity(), nn.ReLU())) is Act.RELU
    assert folded(WithAct(nn.Dropout(), nn.ReLU())) is Act.NONE
    assert folded(WithAct(nn.Identity(), nn.SiLU())) is Act.NONE
    assert folded(nn.BatchNorm2d(3)) is Act.NONE


def test_maps_on_a_cpu_are_left_to_pytorch() -> None:
    assert not maps.serves(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
