"""Which cell comes next, and what a process does with one for which there is no memory just now."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from generalizeformer.benchmark import side_by_side
from generalizeformer.benchmark.time_limit import OutOfTimeError, TimeLimit

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


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_only_processes_on_cpus_keep_their_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, accelerator: str
) -> None:
    kept: list[bool] = []
    monkeypatch.setattr(side_by_side.memory, "keep", lambda: kept.append(True))
    monkeypatch.setattr(side_by_side, "Fabric", lambda **_: None)
    monkeypatch.setattr(side_by_side.torch, "set_num_threads", lambda _: None)
    for name in ("place", "domains", "fabric"):  # put back afterwards
        monkeypatch.setattr(side_by_side._Here, name, None, raising=False)
    side_by_side._begin(side_by_side.Place(domains, accelerator, "32-true", tmp_path), 2)
    assert kept == [True] * (accelerator == "cpu")
