"""`benchmark`: every target left out once, or another suite, all methods on the same source models."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from generalizeformer.cli._cells import check_rows, files, planned, recordable
from generalizeformer.cli._checks import check_apart, check_size
from generalizeformer.cli._data import Choice, all_domains, outlined
from generalizeformer.cli._parts import Machine, Part, check_again, check_common
from generalizeformer.cli._terminal import (
    aside,
    check_folder,
    console,
    fabric,
    make_folder,
    pick_device,
    show,
    show_words,
    stage_progress,
)
from generalizeformer.errors import UserError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from generalizeformer.benchmark.cells import Cell
    from generalizeformer.benchmark.records import Record
    from generalizeformer.benchmark.side_by_side import Place
    from generalizeformer.data.domains import DomainDataset


def benchmark(
    out: Annotated[Path, tyro.conf.Positional],
    /,
    what: Annotated[Part, tyro.conf.OmitArgPrefixes] = Part(),  # noqa: B008, it is frozen
    where: Annotated[Machine, tyro.conf.OmitArgPrefixes] = Machine(),  # noqa: B008
) -> None:
    """Leave every target out once: train without it, compare all methods on it. Run again, it goes on.

    Every domain is a target, but where the dataset keeps some for that (rotated sets, living17): then only those are.

    What was recorded before in the same settings is told as well, also of targets, sources and seeds not asked for.

    Args:
        out: Folder for the finished cells, summary.json and page.html, with models and backbones below it, which all
            suites share. Suites other than main have a folder of their name in it for the rest.
        what: What is to be recorded.
        where: Where it runs, and for how long.
    """
    record({"": what}, out, where)


def record(
    parts: Mapping[str, Part], out: Path, where: Machine, chosen: Sequence[str] | None = None
) -> None:
    """The records of these parts in their order, all if none is chosen, and what all parts of their suites tell."""
    from generalizeformer.benchmark.side_by_side import Place
    from generalizeformer.benchmark.store import alike, check_images
    from generalizeformer.benchmark.time_limit import TimeLimit
    from generalizeformer.core.backbones import library_of

    check_folder(out)
    where.check()
    end = None if where.minutes is None else TimeLimit.of(where.minutes)
    first = check_common(parts)
    check_apart(out, where.root)
    check_size(first.image_size)
    if not where.only_tell:  # which computes nothing
        pick_device(where.device)
    for name in {part.backbone for part in parts.values() if part.backbone is not None}:
        library_of(name)  # one that nobody knows is told before images are read
    choice = first.choice(where.root)
    domains, divided = outlined(choice) if where.only_tell else all_domains(choice)
    asked = planned(parts, domains, divided)
    cells = [cell for name in chosen or parts for cell in asked[name]]
    commit = _commit()
    check_again(where.again, cells, commit)
    # What was recorded before is told as well, whatever is asked for now.
    told = recordable(parts, asked, domains, divided)
    check_rows(out, asked, told)
    every = [cell for mine in told.values() for cell in mine]
    if not where.only_tell:
        check_images(out, [*every, *alike(out, every, domains.names)], domains)
        make_folder(out)
        device = fabric(where.device, 1, first.precision)
        load = partial(_domains, choice)
        place = Place(load, device.device.type, first.precision, out, commit, end, where.again)
        _run(cells, domains, place, device, where.jobs)
    for suite in dict.fromkeys(cell.suite for cell in cells):
        mine = files(cell for cell in every if cell.suite == suite)
        _tell(out, suite, choice.data, [*mine, *_others(out, mine, domains)])


def _run(
    cells: "Sequence[Cell]", domains: "DomainDataset", place: "Place", device: "Fabric", jobs: int
) -> None:
    """Makes what is missing of the cells, until the time is up."""
    from generalizeformer.benchmark.time_limit import OutOfTimeError

    try:
        if jobs > 1:
            _side_by_side(cells, place, jobs)
        else:
            _finish(cells, domains, place, device)
    except OutOfTimeError:
        aside.print("time is up: run the same command again and it goes on", soft_wrap=True)


def _others(out: Path, asked: "Sequence[Cell]", domains: "DomainDataset") -> "list[Cell]":
    """Cells of one suite that are stored beside those asked for, with a word on how many."""
    from generalizeformer.benchmark.store import alike

    found = alike(out, asked, domains.names)
    if found:
        words = "told as well, as recorded before, are cells of other targets, sources or seeds"
        aside.print(f"{asked[0].suite}: {words}: {len(found)}", soft_wrap=True)
    return found


def _finish(
    cells: "Sequence[Cell]", domains: "DomainDataset", place: "Place", where: "Fabric"
) -> None:
    """One cell after another, with bars."""
    from generalizeformer.benchmark.leave_one_out import finish

    for number, cell in enumerate(cells, start=1):
        aside.print(f"cell {number} of {len(cells)}: {_words(cell)}", soft_wrap=True)
        with stage_progress() as bars:
            report = bars if place.limit is None else place.limit.watched(bars)
            finish(cell, domains, place.folder, where, report, place.commit, place.again)


def _side_by_side(cells: "Sequence[Cell]", place: "Place", jobs: int) -> None:
    """Several cells at a time, with one bar, and a line for each that is finished: logs have no bars."""
    from generalizeformer.benchmark.side_by_side import finish_together

    with stage_progress() as report:

        def tell(cell: "Cell", done: int) -> None:
            aside.print(f"finished {done} of {len(cells)}: {_words(cell)}", soft_wrap=True)
            report("cells", done, len(cells), {})

        report("cells", 0, len(cells), {})
        finish_together(cells, place, jobs, tell)


def _words(cell: "Cell") -> str:
    """A cell, to people."""
    return f"{cell.suite}, {cell.target}, seed {cell.seed}, {cell.training}"


def _domains(choice: Choice) -> "DomainDataset":
    """All domains of the dataset; a function of the module, so that other processes can call it."""
    return all_domains(choice)[0]


def _tell(out: Path, name: str, data: str, cells: "Sequence[Cell]") -> None:
    """The summary and the page as files, the tables and where they are on the screen."""
    from generalizeformer.benchmark.leave_one_out import told
    from generalizeformer.benchmark.pages import benchmark_page, refusal_sections
    from generalizeformer.benchmark.store import read, suite_folder
    from generalizeformer.benchmark.suites import SUITES
    from generalizeformer.benchmark.summary import write
    from generalizeformer.benchmark.tables import method_names, refusal_table

    records = [record for cell in cells for record in told(out, cell)]
    refused = [refusal for cell in cells for refusal in read(out, cell).refusals]
    suite, out = SUITES[name], suite_folder(out, name)
    for table in suite.tables(records, f"{data}, {suite.title}") if records else ():
        show(table)
    if refused:
        show_words(refusal_table(refused, "Could not take part"))
    if not records:
        console.print(f"{name}: no records yet", soft_wrap=True)
        return
    if few := [m for m in method_names(records) if not _is_whole(records, m)]:
        words = "no mean over all is told of it, as no training of it has met all that others met"
        aside.print(f"{name}: {', '.join(few)}: {words}", soft_wrap=True)
    write(out / "summary.json", records, suite.summary)
    console.print(f"records: {out / 'cells'}", soft_wrap=True)
    console.print(f"summary: {out / 'summary.json'}", soft_wrap=True)
    try:
        sections = [*suite.sections(records), *refusal_sections(refused)]
        title = f"{suite.heading}: {data}"
        benchmark_page(out / "page.html", title, records, sections, suite.about)
        console.print(f"page: {out / 'page.html'}", soft_wrap=True)
    except UserError as error:  # the answer is there without its pictures
        console.print(f"no page: {error}", soft_wrap=True)


def _is_whole(records: "Sequence[Record]", method: str) -> bool:
    """Whether some training of the method is told: it met, in one batch size, all that anybody met in it."""
    from generalizeformer.benchmark.tables import batch_sizes, whole

    return any(
        whole([r for r in records if r.batch_size == size], method) for size in batch_sizes(records)
    )


def _commit() -> str | None:
    """The commit of a checkout that this code runs from; None where it is installed, or git is missing.

    Its name ends in -changed where the code is not quite the commit's. A copy without its history, on a rented
    machine for one, is told by $GENERALIZEFORMER_COMMIT.
    """
    checkout = Path(__file__).parents[3]
    told = os.environ.get("GENERALIZEFORMER_COMMIT")
    if told or not (checkout / ".git").exists():
        return told
    commit = _git(checkout, "rev-parse", "HEAD")
    # New files count. Only the code's: results change while they are made.
    changed = commit and _git(checkout, "status", "--porcelain", "--", "src")
    return f"{commit}-changed" if changed else commit


def _git(checkout: Path, *words: str) -> str | None:
    """What git says; None where it says nothing, fails, or is missing."""
    try:
        asked = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True)
    except OSError:
        return None
    said = asked.stdout.strip()  # some words also where it fails
    return said if said and asked.returncode == 0 else None
