"""torch.compile captures a grouped run whole, and once for any number of groups."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .nets import ARCHITECTURES

QUICK = ("digits", "timm resnet18", "vit_tiny")
OTHERS = tuple(name for name in ARCHITECTURES if name not in QUICK)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(QUICK, id="quick"),
        pytest.param(OTHERS, id="others", marks=pytest.mark.slow),
    ],
)
def compiled(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What compiled.py found. That it ended well says that nothing broke the graph."""
    tests = Path(__file__).parents[1]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "core.compiled", *request.param]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert list(found["runs"]) == list(request.param)
    return found


def test_a_captured_run_answers_like_an_eager_one(compiled: dict[str, Any]) -> None:
    for name, run in compiled["runs"].items():
        assert run["difference"] < 1e-10, name
        assert run["watched"] > 0, name


def test_another_number_of_groups_is_not_compiled_anew(compiled: dict[str, Any]) -> None:
    assert all(run["graphs"] == [1, 1] for run in compiled["runs"].values())


@pytest.mark.parametrize("generator", ["settling", "varying"])
def test_kin_and_looks_are_captured_whole_too(compiled: dict[str, Any], generator: str) -> None:
    assert compiled["apart"][generator]["difference"] < 1e-10
    assert compiled["apart"][generator]["graphs"] == [1, 1]


def test_gradients_pass_through_a_captured_run(compiled: dict[str, Any]) -> None:
    assert compiled["gradients"]["difference"] < 1e-9 * compiled["gradients"]["size"]
