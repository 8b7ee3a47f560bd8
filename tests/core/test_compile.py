"""torch.compile captures a grouped run whole, and once for any number of groups."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .nets import ARCHITECTURES

NAMES = list(ARCHITECTURES)
EACH = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """What compiled.py found. That it ended well says that nothing broke the graph."""
    tests = Path(__file__).parents[1]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-m", "core.compiled", *NAMES], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@EACH
def test_a_captured_run_answers_like_an_eager_one(compiled: dict[str, Any], name: str) -> None:
    assert compiled["runs"][name]["difference"] < 1e-10
    assert compiled["runs"][name]["watched"] > 0


@EACH
def test_another_number_of_groups_is_not_compiled_anew(compiled: dict[str, Any], name: str) -> None:
    assert compiled["runs"][name]["graphs"] == [1, 1]


@pytest.mark.parametrize("generator", ["settling", "varying"])
def test_kin_are_captured_whole_too(compiled: dict[str, Any], generator: str) -> None:
    assert compiled["kin"][generator]["difference"] < 1e-10
    assert compiled["kin"][generator]["graphs"] == [1, 1]


def test_gradients_pass_through_a_captured_run(compiled: dict[str, Any]) -> None:
    assert compiled["gradients"]["difference"] < 1e-9 * compiled["gradients"]["size"]
