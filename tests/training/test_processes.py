"""Two processes train one model."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from generalizeformer.training._together import average, descend, share_buffers
from generalizeformer.training.erm import Erm

from .toys import PREPROCESSING, fabric, network, recipe, same, seeded, sources, state

COUPLE = Path(__file__).with_name("couple.py")


def pretended() -> Mock:
    """A fabric of two processes, the other of which always has twice our numbers."""
    both = Mock(spec=Fabric, world_size=2)
    both.all_reduce.side_effect = lambda value, reduce_op: (value + 2 * value) / 2
    return both


def test_tensors_of_any_shape_become_their_mean_in_place_and_in_one_message() -> None:
    values = [torch.ones(2, 3), torch.tensor(4.0), torch.arange(3.0)]
    expected = [1.5 * value for value in values]
    both = pretended()
    average(both, values)
    torch.testing.assert_close(values, expected)
    assert both.all_reduce.call_args.kwargs == {"reduce_op": "mean"}
    assert both.all_reduce.call_count == 1


def test_running_statistics_become_their_mean() -> None:
    backbone = network()
    before = state(backbone)
    share_buffers(pretended(), backbone)
    after = state(backbone)
    for name in before:
        factor = 1.5 if "running" in name else 1
        torch.testing.assert_close(after[name], factor * before[name], check_dtype=False)


def test_statistics_of_a_backbone_in_training_are_of_all_processes_images() -> None:
    data, config = sources(), recipe().erm
    alone, both = network(), network()
    several = pretended()
    several.device, several.autocast = torch.device("cpu"), contextlib.nullcontext
    several.backward.side_effect = lambda loss: loss.backward()
    for backbone, where in ((alone, fabric()), (both, several)):
        Erm(backbone, data, data, PREPROCESSING, config, where).update(0, seeded())
    expected, found = state(alone), state(both)
    for name in (name for name in expected if "running" in name):
        torch.testing.assert_close(found[name], 1.5 * expected[name])


def test_one_process_averages_nothing() -> None:
    values = [torch.ones(2)]
    average(fabric(), values)
    share_buffers(fabric(), network())
    assert torch.equal(values[0], torch.ones(2))


def test_a_step_zeroes_clips_and_moves() -> None:
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    weight.grad = torch.full((2,), 100.0)  # left over from before
    optimizer = torch.optim.SGD([weight], lr=1.0)
    descend(fabric(), optimizer, (weight * weight.detach()).sum(), clip=1.0)
    torch.testing.assert_close(weight.detach(), torch.tensor([3 - 0.6, 4 - 0.8]))


@pytest.mark.slow
@pytest.mark.parametrize("episodes", ["held-out", "joint"])
def test_both_processes_end_with_the_same_weights(tmp_path: Path, episodes: str) -> None:
    environment: dict[str, Any] = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(COUPLE), str(tmp_path), episodes],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    first, second = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in (0, 1))
    assert same(first, second)
    assert not same(first, state(network()))
