import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from generalizeformer.errors import CheckpointError, UserError
from generalizeformer.training._loop import Metrics, Stage, fit

from .toys import fabric


class Walk:
    """A method that adds random numbers; its score rises until step 5 and falls after it."""

    def __init__(self) -> None:
        self.place, self.steps = torch.zeros(2), []

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        self.place = self.place + torch.rand(2, generator=generator) + torch.rand(2)
        self.steps.append(step)
        return {"loss": 1.0}

    def validate(self) -> Metrics:
        return {"score": float(-abs(self.steps[-1] - 5))}

    def state(self) -> dict[str, Any]:
        return {"place": self.place}

    def load(self, state: dict[str, Any]) -> None:
        self.place = state["place"]

    def weights(self) -> dict[str, torch.Tensor]:
        return {"place": self.place}

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.place = weights["place"]


def stage(folder: Path, **changes: Any) -> Stage:
    settings = {"meta": {"learning_rate": 0.1}, "seed": 0}
    defaults = {"name": "walk", "steps": 12, "seed": 0, "every": 2, "settings": settings}
    return Stage(folder=folder, fabric=fabric(), **(defaults | changes))


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "walk.jsonl").read_text().splitlines()]


def stopped(folder: Path, at: int, **changes: Any) -> None:
    """Leaves the folder as a run that was killed after this step."""

    def kill(name: str, done: int, steps: int, metrics: Metrics) -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(Walk(), stage(folder, report=kill, **changes))


def test_the_best_weights_are_kept_and_logged(tmp_path: Path) -> None:
    method = Walk()
    best = fit(method, stage(tmp_path))
    assert best == {"loss": 1.0, "score": 0.0}
    until = Walk()
    fit(until, stage(tmp_path / "six", steps=6))
    assert torch.equal(method.place, until.place)
    assert [line["step"] for line in log_of(tmp_path)] == [2, 4, 6, 8, 10, 12]
    assert log_of(tmp_path)[2] == {"stage": "walk", "step": 6, "loss": 1.0, "score": 0.0}


def test_the_last_step_is_validated_wherever_it_falls(tmp_path: Path) -> None:
    fit(Walk(), stage(tmp_path, steps=5, every=3))
    assert [line["step"] for line in log_of(tmp_path)] == [3, 5]


@pytest.mark.parametrize("at", [1, 2, 7, 11])
def test_a_stopped_run_ends_like_one_that_never_was(tmp_path: Path, at: int) -> None:
    whole, resumed = Walk(), Walk()
    fit(whole, stage(tmp_path / "whole"))
    stopped(tmp_path / "stopped", at)
    fit(resumed, stage(tmp_path / "stopped"))
    assert resumed.steps == list(range(at // 2 * 2, 12))
    assert torch.equal(whole.place, resumed.place)
    assert log_of(tmp_path / "stopped") == log_of(tmp_path / "whole")


def test_a_finished_stage_does_nothing_again(tmp_path: Path) -> None:
    first, again = Walk(), Walk()
    best = fit(first, stage(tmp_path))
    assert fit(again, stage(tmp_path)) == best
    assert again.steps == []
    assert torch.equal(first.place, again.place)


def test_a_finished_stage_is_not_made_longer(tmp_path: Path) -> None:
    fit(Walk(), stage(tmp_path))
    with pytest.raises(CheckpointError, match="12 steps, not 14"):
        fit(Walk(), stage(tmp_path, steps=14))


@pytest.mark.parametrize("tail", ['{"stage": "walk", "st', '{"stage": 3}', "\x00}", '{"step": 6}'])
def test_what_a_kill_left_in_the_log_is_dropped(tmp_path: Path, tail: str) -> None:
    stopped(tmp_path, 5)
    with (tmp_path / "walk.jsonl").open("a") as log:
        log.write(tail)
    fit(Walk(), stage(tmp_path))
    assert [line["step"] for line in log_of(tmp_path)] == [2, 4, 6, 8, 10, 12]


def test_a_log_without_a_state_is_begun_again(tmp_path: Path) -> None:
    stopped(tmp_path, 5)
    (tmp_path / "walk.state").unlink()
    fit(Walk(), stage(tmp_path))
    assert [line["step"] for line in log_of(tmp_path)] == [2, 4, 6, 8, 10, 12]


def test_a_missing_log_is_no_obstacle(tmp_path: Path) -> None:
    stopped(tmp_path, 5)
    (tmp_path / "walk.jsonl").unlink()
    fit(Walk(), stage(tmp_path))
    assert [line["step"] for line in log_of(tmp_path)] == [6, 8, 10, 12]


def test_a_state_has_the_same_bytes_whoever_writes_it(tmp_path: Path) -> None:
    stopped(tmp_path / "one", 5)
    other = threading.Thread(target=stopped, args=(tmp_path / "other", 5))
    other.start()
    other.join()
    one, two = ((tmp_path / name / "walk.state").read_bytes() for name in ("one", "other"))
    assert one == two


def test_half_a_state_file_beside_the_whole_one_is_ignored(tmp_path: Path) -> None:
    whole, resumed = Walk(), Walk()
    fit(whole, stage(tmp_path / "whole"))
    stopped(tmp_path, 5)
    (tmp_path / ".walk.state.partial").write_bytes(b"half")
    fit(resumed, stage(tmp_path))
    assert torch.equal(whole.place, resumed.place)


@pytest.mark.parametrize("content", [b"", b"not a state", None])
def test_a_damaged_state_is_one_clear_line(tmp_path: Path, content: bytes | None) -> None:
    stopped(tmp_path, 5)
    path = tmp_path / "walk.state"
    path.write_bytes(path.read_bytes()[:300] if content is None else content)
    with pytest.raises(
        CheckpointError, match=r"cannot be resumed .*; delete it to start"
    ) as caught:
        fit(Walk(), stage(tmp_path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_state_of_something_else_is_one_clear_line(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    torch.save({"step": 3}, tmp_path / "walk.state")
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        fit(Walk(), stage(tmp_path))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"meta": {"learning_rate": 0.2}, "seed": 0}, "meta.learning_rate 0.1, not 0.2"),
        ({"meta": {"learning_rate": 0.1}, "seed": 1}, "seed 0, not 1"),
        ({"meta": {}, "seed": 0}, "meta.learning_rate 0.1, not None"),
        ({"meta": {"learning_rate": 0.1}, "seed": 0, "new": [1]}, r"new None, not \[1\]"),
    ],
)
def test_a_run_with_other_settings_is_refused_and_told_which(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    stopped(tmp_path, 5)
    with pytest.raises(CheckpointError, match=f"belongs to a run with {words}; go on with"):
        fit(Walk(), stage(tmp_path, settings=settings))


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ("abcde", "abcdf", "domains e, not f"),
        ("abcde", "fghij", "domains a, b, c and 2 more, not f, g, h and 2 more"),
        ("abc", "ab", "domains c as well"),
        ("ab", "abc", "no domains c"),
        ("ab", "ba", "domains in another order, a, b"),
    ],
)
def test_of_domains_only_those_that_differ_are_told(
    tmp_path: Path, before: str, now: str, words: str
) -> None:
    stopped(tmp_path, 5, settings={"domains": list(before)})
    with pytest.raises(CheckpointError, match=f"a run with {words}; go on with"):
        fit(Walk(), stage(tmp_path, settings={"domains": list(now)}))


def test_weights_that_are_no_numbers_are_not_the_best(tmp_path: Path) -> None:
    class Broken(Walk):
        def weights(self) -> dict[str, torch.Tensor]:
            return {"at": torch.tensor([float("nan")])}

    with pytest.raises(UserError, match=r"walk: there is NaN in at at step \d+, so training has"):
        fit(Broken(), stage(tmp_path))


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    class Diverging(Walk):
        def update(self, step: int, generator: torch.Generator) -> Metrics:
            return {"loss": float("nan") if step == 4 else 1.0}

        def validate(self) -> Metrics:
            return {"score": 0.0}

    with pytest.raises(UserError, match=r"walk: loss is nan at step 5, .* lower the learning rate"):
        fit(Diverging(), stage(tmp_path))


def test_every_step_is_reported(tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = []
    fit(Walk(), stage(tmp_path, steps=4, report=lambda *words: told.append(words)))
    assert [(name, done, steps) for name, done, steps, _ in told] == [
        ("walk", done, 4) for done in (1, 2, 3, 4)
    ]
    assert ["score" in metrics for *_, metrics in told] == [False, True, False, True]


def test_convolutions_repeat_their_bits_in_the_loop_and_are_the_callers_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn, seen = torch.backends.cudnn, []
    monkeypatch.setattr(cudnn, "benchmark", True)

    class Watching(Walk):
        def update(self, step: int, generator: torch.Generator) -> Metrics:
            seen.append((cudnn.deterministic, cudnn.benchmark))
            if step == 3:
                raise OSError("full")
            return super().update(step, generator)

    with pytest.raises(OSError, match="full"):
        fit(Watching(), stage(tmp_path))
    assert set(seen) == {(True, False)}
    assert (cudnn.deterministic, cudnn.benchmark) == (False, True)
