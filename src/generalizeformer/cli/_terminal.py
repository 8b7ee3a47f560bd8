"""How things look in a terminal: progress, tables and names."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from generalizeformer.errors import CheckpointError, DataError
from generalizeformer.training._places import Device as Device
from generalizeformer.training._places import check_folder as check_folder
from generalizeformer.training._places import fabric as fabric
from generalizeformer.training._places import pick_device as pick_device

if TYPE_CHECKING:
    from generalizeformer.benchmark.tables import Table
    from generalizeformer.training._loop import Metrics, Report

BRIEF = 2  # seconds, in which a rate is measured too badly to be told

# Names of folders and domains may hold brackets, so nothing is markup.
console = Console(markup=False, highlight=False)  # answers
aside = Console(markup=False, highlight=False, stderr=True)  # progress: never mixed into answers


@contextmanager
def stage_progress() -> Iterator["Report"]:
    """A report for training: one bar per stage, with its latest validation; in a log, a line for each validation."""
    columns = (
        TextColumn("{task.description:<22}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[score]}", markup=False),
    )
    progress = Progress(*columns, console=aside, disable=not aside.is_terminal)
    tasks: dict[str, Any] = {}

    def report(stage: str, done: int, steps: int, metrics: "Metrics") -> None:
        score = f"validation {metrics['score']:.1f} %" if "score" in metrics else ""
        if not aside.is_terminal:
            if score or done == steps:
                words = f"{stage}: {done} of {steps}{', ' if score else ''}{score}"
                aside.print(words, soft_wrap=True)
            return
        if not tasks:
            progress.start()
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=steps, score="")
        progress.update(tasks[stage], completed=done)
        if score:
            progress.update(tasks[stage], score=score)

    try:
        yield report
    finally:
        if tasks:  # bars that never started leave no empty line
            progress.stop()


def introduced(report: "Report", words: str) -> "Report":
    """The report, with words before its first: nothing is said of a training that does not begin."""
    said: list[str] = []

    def told(*given: Any) -> None:
        if not said:
            said.append(words)
            aside.print(words, soft_wrap=True)
        report(*given)

    return told


@contextmanager
def count_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A report for work on many images: a bar that appears with the first of them, and in time the rate."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=aside)

    def report(done: int, total: int) -> None:
        if not progress.task_ids:
            progress.start()
            progress.add_task(title, total=total, rate="")
        speed, elapsed = progress.tasks[0].speed, progress.tasks[0].elapsed or 0
        rate = "" if speed is None or elapsed < BRIEF else f"{speed:.0f}/s"
        progress.update(progress.task_ids[0], completed=done, rate=rate)

    try:
        yield report
    finally:
        if progress.task_ids:  # a bar that never started leaves no empty line
            progress.stop()


def printable(text: str) -> str:
    """The text with escapes for what is none: a file's name may hold any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def show(table: "Table") -> None:
    """Prints a table, the best of each column in bold."""
    drawn = RichTable(title=Text(table.title), title_justify="left", title_style="bold")
    for number, head in enumerate(table.columns):
        drawn.add_column(Text(head), justify="left" if number == 0 else "right")
    for line, row in enumerate(table.rows):
        cells = enumerate(row)
        drawn.add_row(*(Text(c, "bold" if (line, n) in table.best else "") for n, c in cells))
    print_whole(drawn)


def show_words(table: "Table") -> None:
    """Prints a table of sentences, which break where a terminal ends, and nowhere for other programs."""
    drawn = RichTable(title=Text(table.title), title_justify="left", title_style="bold")
    for number, head in enumerate(table.columns):
        drawn.add_column(Text(head), no_wrap=number == 0)
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    console.print(drawn) if console.is_terminal else print_whole(drawn)


def print_whole(table: RichTable) -> None:
    """Prints a table with every cell whole: heads may break at spaces, and lines may leave a narrow terminal."""
    if _set_widths(table, lambda head: [head]) > console.width:
        _set_widths(table, str.split)
    console.print(table, crop=False)


def _set_widths(table: RichTable, parts: Callable[[str], list[str]]) -> int:
    """Makes every column as wide as its widest cell or part of its head: left to itself, rich cuts to fit."""
    for column in table.columns:
        texts = [*parts(str(column.header)), *(str(cell) for cell in column.cells)]
        column.width = max(map(len, texts))
    table.width = sum((column.width or 0) + 3 for column in table.columns) + 1  # spaces and lines
    return table.width


def check_model(path: Path) -> None:
    """Raises where there is no such folder: a mistyped name must not be asked of the network."""
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: no such model folder; give the folder that `train` or save_pretrained wrote"
        )


def make_folder(path: Path) -> None:
    """Makes the folder, or raises: before hours of work, not after them."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{path}: no such folder can be made ({error.strerror}); name another"
        ) from None
