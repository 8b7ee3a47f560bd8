"""torch.compile captures a grouped run whole, and once for any number of groups."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUNS = pytest.mark.parametrize(
    "run", [f"{norm} {watch}" for norm in ("BatchNorm", "LayerNorm") for watch in (False, True)]
)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """What compiled.py found. That it ended well says that nothing broke the graph."""
    tests = Path(__file__).parents[1]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-m", "core.compiled"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@RUNS
def test_a_captured_run_answers_like_an_eager_one(compiled: dict[str, Any], run: str) -> None:
    assert compiled["runs"][run]["difference"] < 1e-10
    assert (compiled["runs"][run]["watched"] > 0) == run.endswith("True")


@RUNS
def test_another_number_of_groups_is_not_compiled_anew(compiled: dict[str, Any], run: str) -> None:
    _, second, *later = compiled["runs"][run]["graphs"]
    assert 1 <= second <= 2
    assert later == [second, second]


def test_gradients_pass_through_a_captured_run(compiled: dict[str, Any]) -> None:
    assert compiled["gradients"]["difference"] < 1e-9 * compiled["gradients"]["size"]
