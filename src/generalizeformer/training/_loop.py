"""The only training loop: update, validate on source data, keep the best, log, and survive being killed.

Every random draw of a step comes from a seed derived from the step's number, so a run that is killed and
resumed from its last saved state ends with the same weights as one that was never interrupted. On a GPU the same
holds of convolutions, for which repeatable algorithms are chosen: the same training on the same kind of GPU gives
the same backbone again. What adds up in no order there, as the sums over groups that φ looks at do, may differ.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from lightning_fabric import Fabric

from generalizeformer import atomic
from generalizeformer.errors import CheckpointError, UserError
from generalizeformer.seeds import derive

FEW = 3  # domains that a message names
Metrics = dict[str, float]
Report = Callable[[str, int, int, Metrics], None]
"""Told (stage, steps done, steps in all, latest metrics) after every step."""


@runtime_checkable
class Method(Protocol):
    """What a training method is to the loop."""

    def update(self, step: int, generator: torch.Generator) -> Metrics:
        """One optimisation step on freshly drawn source data."""

    def validate(self) -> Metrics:
        """Metrics on held-out source data; `score` decides which weights are best (higher is better)."""

    def state(self) -> dict[str, Any]:
        """Everything that moves: weights and optimiser."""

    def load(self, state: dict[str, Any]) -> None: ...

    def weights(self) -> dict[str, torch.Tensor]:
        """What the best checkpoint keeps."""

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of the loop: where it writes, how long it is, how often it looks up."""

    name: str
    steps: int
    seed: int
    folder: Path
    fabric: Fabric  # rank 0 alone writes and reports; the others draw other data
    every: int = 50  # validate, and save the state, every so many steps
    settings: dict[str, Any] = field(default_factory=dict)  # whoever resumes must have the same
    report: Report | None = None


def fit(method: Method, stage: Stage) -> Metrics:
    """Drives the method through the stage and leaves it with its best weights. Gives the best metrics."""
    state = _resume(method, stage)
    with repeatable():
        for step in range(state["step"], stage.steps):
            metrics = _update(method, stage, step)
            done = step + 1
            if done % stage.every == 0 or done == stage.steps:
                metrics |= method.validate()
                if state["best"] is None or metrics["score"] > state["best"]["score"]:
                    state["best"], state["weights"] = metrics, _best(method, stage, done)
                state["step"] = done
                _record(method, stage, state, metrics)
            if stage.report is not None and stage.fabric.global_rank == 0:
                stage.report(stage.name, done, stage.steps, metrics)
    # Ranks score alike up to rounding; where that decides which weights are best, rank 0 does.
    method.load_weights(stage.fabric.broadcast(state["weights"]))
    best: Metrics = state["best"]
    return best


@contextmanager
def repeatable() -> Iterator[None]:
    """Convolutions by algorithms that give the same bits every time; afterwards as the caller had it."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def is_finished(stage: Stage) -> bool:
    """Whether the stage was run to its end with these very settings: `fit` then only loads its best weights."""
    path = _state_path(stage)
    if not path.exists():
        return False
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        same = _difference(state["settings"], stage.settings) is None
        return bool(same and state["step"] >= stage.steps)
    except Exception:  # `fit` tells what is wrong with it
        return False


def _update(method: Method, stage: Stage, step: int) -> Metrics:
    words = (stage.seed, stage.name, step, stage.fabric.global_rank)
    torch.manual_seed(derive(*words, "noise"))  # dropout and descriptor noise
    metrics = method.update(step, torch.Generator().manual_seed(derive(*words, "data")))
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise _diverged(stage, f"{name} is {value}", step + 1)
    return metrics


def _best(method: Method, stage: Stage, done: int) -> dict[str, torch.Tensor]:
    """The weights to keep, which the last update may have made no numbers while its loss still was one."""
    weights = _copy(method.weights())
    for name, value in weights.items():
        if value.isnan().any():
            raise _diverged(stage, f"there is NaN in {name}", done)
    return weights


def _diverged(stage: Stage, words: str, step: int) -> UserError:
    return UserError(
        f"{stage.name}: {words} at step {step}, so training has diverged; "
        f"lower the learning rate, delete {stage.folder} and start again"
    )


def _record(method: Method, stage: Stage, state: dict[str, Any], metrics: Metrics) -> None:
    """Log line first, state second: a kill in between repeats the line, which resuming then drops."""
    if stage.fabric.global_rank:
        return
    stage.folder.mkdir(parents=True, exist_ok=True)
    with _log_path(stage).open("a", encoding="utf-8") as log:
        log.write(json.dumps({"stage": stage.name, "step": state["step"], **metrics}) + "\n")
    # Nobody goes on from the end: the best weights are enough, and the optimiser would be three times as large.
    moving = None if state["step"] == stage.steps else method.state()
    # By an open file: PyTorch would write the partial file's name, which is the process's own, into it.
    with atomic.replacing(_state_path(stage)) as partial, partial.open("wb") as file:
        torch.save(state | {"method": moving, "settings": stage.settings}, file)


def _resume(method: Method, stage: Stage) -> dict[str, Any]:
    """The state of the loop: that of the state file, which also goes into the method, or a fresh one."""
    path = _state_path(stage)
    if not path.exists():
        _cut_log(stage, 0)
        return {"step": 0, "best": None, "weights": None}
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        other = _difference(state.pop("settings"), stage.settings)
        moving = state.pop("method")
        if other is None and moving is None and state["step"] < stage.steps:
            other = f"{state['step']} steps, not {stage.steps}"
        if other is None and moving is not None:
            method.load(moving)
    except Exception as error:  # a damaged file fails in many ways, and all mean the same
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path}: cannot be resumed ({reason}); delete it to start this stage again"
        ) from None
    if other is not None:
        raise CheckpointError(
            f"{path}: belongs to a run with {other}; go on with the settings it has, or choose another "
            f"folder, or delete {stage.folder} to start again"
        )
    _cut_log(stage, state["step"])
    return state


def _difference(old: dict[str, Any], new: dict[str, Any], where: str = "") -> str | None:
    """The first setting in which two runs differ, in words.

    Lists, such as the domains, come last: what else differs is often why they do.
    """
    keys = old.keys() | new.keys()
    for key in sorted(keys, key=lambda key: (isinstance(old.get(key, new.get(key)), list), key)):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            deeper = _difference(before, now, f"{where}{key}.")
            if deeper is not None:
                return deeper
        elif before != now:
            return _apart(f"{where}{key}", before, now)
    return None


def _apart(name: str, before: Any, now: Any) -> str:
    """How two values of a setting differ, in words: of images their sizes, of domains only those that do."""
    if name == "preprocessing.size":
        return f"images of {before} px, not {now}"
    if name != "domains" or not before or not now:
        return f"{name} {before!r}, not {now!r}"
    gone = [each for each in before if each not in now]
    come = [each for each in now if each not in before]
    if gone and come:
        return f"{name} {_few(gone)}, not {_few(come)}"
    if gone or come:
        return f"{name} {_few(gone)} as well" if gone else f"no {name} {_few(come)}"
    return f"{name} in another order, {_few(before)}"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def _cut_log(stage: Stage, step: int) -> None:
    """Drops lines that are incomplete or later than the state that survived."""
    path = _log_path(stage)
    if stage.fabric.global_rank or not path.exists():
        return
    lines = path.read_text("utf-8", errors="replace").splitlines()
    kept = [line for line in lines if _step_of(line) <= step]
    atomic.write_text(path, "".join(f"{line}\n" for line in kept))


def _step_of(line: str) -> float:
    """The step a log line tells of; infinity where a kill cut the line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _copy(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in weights.items()}


def _state_path(stage: Stage) -> Path:
    return stage.folder / f"{stage.name}.state"


def _log_path(stage: Stage) -> Path:
    return stage.folder / f"{stage.name}.jsonl"
