"""The only training loop: update, validate on source data, keep the best, log, and survive being killed.

Every random draw of a step comes from a seed derived from the step's number, so a run that is killed and
resumed from its last saved state ends with the same weights as one that was never interrupted.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from generalizeformer.errors import CheckpointError
from generalizeformer.seeds import derive

Metrics = dict[str, float]
Report = Callable[[str, int, int, Metrics], None]
"""Told (stage, steps done, steps in all, latest metrics) after every step."""


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
    every: int = 50  # validate, and save the state, every so many steps
    rank: int = 0  # only rank 0 writes; the others draw other data
    report: Report | None = None


def fit(method: Method, stage: Stage) -> Metrics:
    """Drives the method through the stage and leaves it with its best weights. Gives the best metrics."""
    state = _resume(method, stage)
    for step in range(state["step"], stage.steps):
        words = (stage.seed, stage.name, step, stage.rank)
        torch.manual_seed(derive(*words, "noise"))  # dropout and descriptor noise
        metrics = method.update(step, torch.Generator().manual_seed(derive(*words, "data")))
        done = step + 1
        if done % stage.every == 0 or done == stage.steps:
            metrics |= method.validate()
            if state["best"] is None or metrics["score"] > state["best"]["score"]:
                state["best"], state["weights"] = metrics, _copy(method.weights())
            state["step"] = done
            _record(method, stage, state, metrics)
        if stage.report is not None:
            stage.report(stage.name, done, stage.steps, metrics)
    method.load_weights(state["weights"])
    best: Metrics = state["best"]
    return best


def _record(method: Method, stage: Stage, state: dict[str, Any], metrics: Metrics) -> None:
    """Log line first, state second: a kill in between repeats the line, which resuming then drops."""
    if stage.rank:
        return
    stage.folder.mkdir(parents=True, exist_ok=True)
    with _log_path(stage).open("a") as log:
        log.write(json.dumps({"stage": stage.name, "step": state["step"], **metrics}) + "\n")
    path = _state_path(stage)
    partial = path.with_suffix(".partial")
    torch.save(
        state | {"method": method.state(), "seed": stage.seed, "steps": stage.steps}, partial
    )
    os.replace(partial, path)


def _resume(method: Method, stage: Stage) -> dict[str, Any]:
    path = _state_path(stage)
    if not path.exists():
        _log_path(stage).unlink(missing_ok=True)
        return {"step": 0, "best": None, "weights": None}
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if (state["seed"], state["steps"]) != (stage.seed, stage.steps):
            raise CheckpointError(
                f"{path}: belongs to a run with seed {state['seed']} and {state['steps']} steps, not "
                f"{stage.seed} and {stage.steps}; choose another folder or delete this one"
            )
        method.load(state.pop("method"))
    except CheckpointError:
        raise
    except (
        Exception
    ) as error:  # a damaged file fails in many ways, and all mean the same to the user
        raise CheckpointError(
            f"{path}: cannot be resumed ({str(error).splitlines()[0]}); delete it to start again"
        ) from None
    _cut_log(stage, state["step"])
    return state


def _cut_log(stage: Stage, step: int) -> None:
    """Drops lines that are incomplete or later than the state that survived."""
    lines = _log_path(stage).read_text().splitlines() if _log_path(stage).exists() else []
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
    _log_path(stage).write_text("".join(f"{line}\n" for line in kept))


def _copy(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in weights.items()}


def _state_path(stage: Stage) -> Path:
    return stage.folder / f"{stage.name}.state"


def _log_path(stage: Stage) -> Path:
    return stage.folder / f"{stage.name}.jsonl"
