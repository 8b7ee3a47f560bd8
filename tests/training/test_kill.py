"""A killed training, resumed, ends with the weights of one that was never killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VICTIM = Path(__file__).with_name("victim.py")

# Before the first state of a stage, between two states, and after the last step of a stage.
MOMENTS = {
    "held-out": ("erm:2", "erm-without-b:4", "erm-without-c:6", "meta:1", "meta:5"),
    "joint": ("joint:1", "joint:4", "joint:6"),
}


@pytest.mark.parametrize("episodes", ["held-out", "joint"])
def test_killed_runs_end_bit_for_bit_like_whole_ones(tmp_path: Path, episodes: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(VICTIM), str(tmp_path), episodes, *MOMENTS[episodes]],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for name in ("model.safetensors", "config.json"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()
    logs = sorted(path.name for path in (whole / "training").glob("*.jsonl"))
    assert logs
    for name in logs:
        lines = [json.loads(line) for line in (killed / "training" / name).read_text().splitlines()]
        assert [line["step"] for line in lines] == [3, 6]
        assert (killed / "training" / name).read_text() == (whole / "training" / name).read_text()
