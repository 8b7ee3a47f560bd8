"""Runs a toy training in one process, as FOLDER/whole, and in several, each killed at a moment of its own but the
last, as FOLDER/killed.

python victim.py FOLDER EPISODES STAGE:STEP …
"""

import os
import signal
import sys
from pathlib import Path

import torch

from generalizeformer.training._run import train_recipe

sys.path.insert(0, str(Path(__file__).parents[1]))

from generalizeformer.training._loop import Metrics
from training.toys import CARD, fabric, network, recipe, sources


def run(folder: Path, episodes: str, moment: str | None) -> None:
    def report(stage: str, done: int, steps: int, metrics: Metrics) -> None:
        if f"{stage}:{done}" == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    train_recipe(network, sources(), recipe(episodes=episodes), CARD, folder, fabric(), report)


def in_new_process(folder: Path, episodes: str, moment: str | None) -> int:
    """How the process ended: 0, or minus the signal."""
    child = os.fork()
    if not child:
        run(folder, episodes, moment)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    whole, killed = Path(sys.argv[1], "whole"), Path(sys.argv[1], "killed")
    kind, *moments = sys.argv[2:]
    assert in_new_process(whole, kind, None) == 0
    for moment in moments:
        assert in_new_process(killed, kind, moment) == -signal.SIGKILL, moment
    assert in_new_process(killed, kind, None) == 0
