"""Methods on a trained model and its target: which are asked what, with which settings, and what they answer."""

from dataclasses import dataclass, replace
from typing import Any

from generalizeformer.benchmark.cells import SOURCE, Cell
from generalizeformer.benchmark.comparisons import COMPARISONS, Comparison
from generalizeformer.benchmark.records import ORACLE, Record, Refusal, refusal
from generalizeformer.benchmark.runner import run
from generalizeformer.benchmark.selection import best_in_hindsight, choose, grid
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream
from generalizeformer.errors import UserError


@dataclass(frozen=True)
class Task:
    """One method on one stream, and the name of its record."""

    name: str
    method: str
    stream: Stream
    in_hindsight: bool = False  # with the settings that turn out best on the target

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.stream.key()


def tasks(cell: Cell) -> list[Task]:
    """Stream after stream, every method and then the oracles."""
    plan = comparison(cell)
    found = []
    for stream in cell.streams():
        found += [Task(name, method, stream) for name, method in plan.methods.items()]
        found += [Task(f"{m}{ORACLE}", m, stream, in_hindsight=True) for m in plan.hindsight]
    return found


def comparison(cell: Cell) -> Comparison:
    """The suite's for this training, or the methods that the cell names where several are compared."""
    plan = COMPARISONS[cell.suite][cell.training]
    if not cell.methods or cell.training != SOURCE:
        return plan
    hindsight = tuple(name for name in plan.hindsight if name in cell.methods)
    # What is searched longest comes last in every stream: a benchmark may be stopped at any time.
    ordered = sorted(cell.methods, key=lambda name: len(grid(name)))
    return replace(plan, methods={name: name for name in ordered}, hindsight=hindsight)


class Bench:
    """A trained model, the target that methods meet, and the source images that settings are chosen on."""

    def __init__(
        self, model: GeneralizeFormer, target: DomainDataset, held: DomainDataset, cell: Cell
    ) -> None:
        self.model, self.target, self.held, self.cell = model, target, held, cell
        self.sources = held if comparison(cell).forgetting else None
        # Streams of one batch size share these.
        self.choices: dict[tuple[str, int], dict[str, Any]] = {}
        self.before: dict[tuple[int, int | None], dict[str, float]] = {}

    def answer(self, task: Task) -> Record | Refusal:
        """The record of a task, or the words with which the method refused the model or the batches."""
        try:
            if task.in_hindsight:
                return self._oracle(task)
            settings = self._chosen(task.method, task.stream.batch_size)
            return replace(self._run(task, settings, self.sources), method=task.name)
        except UserError as error:
            return refusal(task.name, task.stream, error)

    def _oracle(self, task: Task) -> Record:
        """The best of the grid on the target; what it does to the sources is measured for that one only."""
        best = best_in_hindsight([self._run(task, settings) for settings in grid(task.method)])
        return replace(self._run(task, best.settings, self.sources), method=best.method)

    def _chosen(self, method: str, batch_size: int) -> dict[str, Any]:
        """The settings that do best on the sources."""
        if len(grid(method)) == 1:
            return grid(method)[0]
        if (method, batch_size) not in self.choices:
            seed, limit = self.cell.seed, self.cell.selection_limit
            chosen = choose(self.model, self.held, method, batch_size, seed, limit)
            self.choices[method, batch_size] = chosen
        return self.choices[method, batch_size]

    def _run(
        self, task: Task, settings: dict[str, Any], sources: DomainDataset | None = None
    ) -> Record:
        given, seed = {task.method: settings}, self.cell.seed
        visit = (task.stream.batch_size, task.stream.limit)
        known = self.before.get(visit) if sources is not None else None
        record = run(self.model, self.target, task.method, task.stream, seed, given, sources, known)
        if sources is not None:
            self.before[visit] = record.sources_before
        return record
