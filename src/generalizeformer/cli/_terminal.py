"""How things look in a terminal: progress, tables, where the computation runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from generalizeformer.benchmark.tables import Table
    from generalizeformer.training._loop import Metrics, Report

console = Console()


@contextmanager
def stage_progress() -> Iterator["Report"]:
    """A report for training: one bar per stage, with its latest metrics."""
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, steps: int, metrics: "Metrics") -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=steps, metrics="")
            words = {"score": "validation {:.1f} %", "loss": "loss {:.3f}"}
            shown = [text.format(metrics[key]) for key, text in words.items() if key in metrics]
            progress.update(tasks[stage], completed=done)
            if "score" in metrics:
                progress.update(tasks[stage], metrics="  ".join(shown))

        yield report


def show(table: "Table") -> None:
    """Prints a table, the best of each column in bold."""
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
    for number, head in enumerate(table.columns):
        drawn.add_column(head, justify="left" if number == 0 else "right")
    for line, row in enumerate(table.rows):
        drawn.add_row(
            *(f"[bold]{c}[/bold]" if (line, n) in table.best else c for n, c in enumerate(row))
        )
    console.print(drawn)


def fabric(device: str, devices: int, precision: Literal["32-true", "bf16-mixed"]) -> "Fabric":
    """Where and how to compute; launches the other processes where there are several."""
    from lightning_fabric import Fabric

    from generalizeformer.errors import UserError

    try:
        made = Fabric(accelerator=device, devices=devices, precision=precision)
        made.launch()
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"device {device!r}: {error}") from None
    return made
