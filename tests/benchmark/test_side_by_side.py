"""Which cell comes next, and what a process does with one for which there is no memory just now."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from generalizeformer.benchmark import side_by_side
from generalizeformer.benchmark.time_limit import OutOfTimeError, TimeLimit
from generalizeformer.data.domains import DomainDataset
from generalizeformer.errors import UserError

from .lab import cells, domains


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Every try at a cell; each takes the next entry of `outcomes`."""
    tries: list[Any] = []
    place = side_by_side.Place(domains, "cpu", "32-true", tmp_path)
    monkeypatch.setattr(side_by_side, "PATIENCE", 0)
    monkeypatch.setattr(side_by_side, "TRIES", 3)
    for name, value in {"place": place, "domains": domains(), "fabric": None}.items():
        monkeypatch.setattr(side_by_side._Here, name, value, raising=False)
    return tries


def failing(tries: list[Any], times: int) -> Any:
    def finish(cell: Any, *_: Any) -> None:
        tries.append(cell)
        if len(tries) <= times:
            raise torch.OutOfMemoryError("none left")

    return finish


def test_a_cell_without_memory_waits_and_tries_again(
    tried: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "finish", failing(tried, 2))
    side_by_side._finish("cell")  # type: ignore[arg-type]
    assert tried == ["cell"] * 3


def test_a_cell_that_never_finds_memory_says_so(
    tried: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "finish", failing(tried, 9))
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        side_by_side._finish("cell")  # type: ignore[arg-type]
    assert len(tried) == 3


def test_a_cell_that_waits_for_memory_looks_at_the_clock(
    tried: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = replace(side_by_side._Here.place, limit=TimeLimit.of(0))
    monkeypatch.setattr(side_by_side._Here, "place", over)
    monkeypatch.setattr(side_by_side, "finish", failing(tried, 2))
    with pytest.raises(OutOfTimeError):
        side_by_side._finish("cell")  # type: ignore[arg-type]
    assert len(tried) == 1


def test_a_limit_of_time_reports_until_it_is_up() -> None:
    told: list[Any] = []
    TimeLimit.of(60).watched(lambda *words: told.append(words))("erm", 1, 2, {})
    assert told == [("erm", 1, 2, {})]
    with pytest.raises(OutOfTimeError):
        TimeLimit.of(0).watched()("erm", 1, 2, {})


def test_cells_of_other_models_come_first_and_none_of_a_file_that_is_written() -> None:
    one, other = cells(seeds=(0, 1))
    more = replace(one, batch_sizes=(8,))  # in the same file
    looks = replace(one, suite="dynamic", looks=("fog:3", "rotation:30"))  # of the same model
    assert side_by_side._next([one, other], []) is one
    assert side_by_side._next([more, looks, other], [one]) is other
    assert side_by_side._next([more, looks], [one, other]) is looks
    assert side_by_side._next([more], [one]) is None
    assert side_by_side._next([more], [looks]) is more
    assert side_by_side._next([], []) is None


def test_another_source_model_comes_before_another_phi() -> None:
    source, phi, other, _ = cells(seeds=(0, 1), trainings=("source", "generalizeformer"))
    assert side_by_side._next([phi, other], [source]) is other
    assert side_by_side._next([phi], [source]) is phi


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A process begins, one of some; what it does for its memory and with its threads."""
    done: dict[str, list[Any]] = {"kept": [], "threads": []}
    monkeypatch.setattr(side_by_side.memory, "keep", lambda: done["kept"].append(True))
    monkeypatch.setattr(side_by_side, "Fabric", lambda **_: None)
    monkeypatch.setattr(side_by_side.torch, "set_num_threads", done["threads"].append)
    for name in ("place", "domains", "fabric"):  # put back afterwards
        monkeypatch.setattr(side_by_side._Here, name, None, raising=False)

    def begin(jobs: int, accelerator: str = "cpu") -> dict[str, list[Any]]:
        side_by_side._begin(side_by_side.Place(domains, accelerator, "32-true", tmp_path), jobs)
        return done

    return begin


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_only_processes_on_cpus_keep_their_memory(begun: Any, accelerator: str) -> None:
    assert begun(2, accelerator)["kept"] == [True] * (accelerator == "cpu")


@pytest.mark.parametrize(("jobs", "threads"), [(2, 3), (4, 1), (9, 1)])
def test_processes_share_the_cores_that_they_may_use(
    begun: Any, monkeypatch: pytest.MonkeyPatch, jobs: int, threads: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(6)}, raising=False)
    assert begun(jobs)["threads"] == [threads]


def test_a_number_of_threads_that_was_asked_for_stays(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert begun(2)["threads"] == []


def killed() -> DomainDataset:
    """What the system does with a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_process_that_is_killed_is_one_clear_line(tmp_path: Path) -> None:
    place = side_by_side.Place(killed, "cpu", "32-true", tmp_path)
    with pytest.raises(UserError, match=r"one of the processes was killed, .*; give fewer --jobs"):
        side_by_side.finish_together(cells(), place, 3, lambda *_: None)


WORKING = """
import fcntl, time
from pathlib import Path
from generalizeformer.benchmark import side_by_side
from tests.benchmark.lab import cells

def busy():
    held = open({held!r}, "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    Path({begun!r}).touch()
    time.sleep(600)

if __name__ == "__main__":
    place = side_by_side.Place(busy, "cpu", "32-true", Path("."))
    side_by_side.finish_together(cells(), place, 2, print)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_the_one_that_began_them(tmp_path: Path, how: signal.Signals) -> None:
    script, held, begun = (tmp_path / name for name in ("working.py", "held", "begun"))
    script.write_text(WORKING.format(held=str(held), begun=str(begun)))
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": paths},
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # the signal reaches the parent alone
    )
    assert becomes(begun.exists)
    parent.send_signal(how)
    parent.wait(60)
    assert becomes(lambda: is_free(held))


def is_free(path: Path) -> bool:
    """Whether the process that locked it is gone."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def becomes(true: Callable[[], bool]) -> bool:
    """Whether it becomes true within two minutes."""
    end = time.monotonic() + 120
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.1)
    return found
