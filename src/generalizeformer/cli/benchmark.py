"""`benchmark`: every domain left out once, or another suite, all methods on the same source models."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from generalizeformer.cli._data import Choice, source_domains
from generalizeformer.cli._recipe import Augment, Division, Flags, given
from generalizeformer.cli._settings import overridden, pairs
from generalizeformer.cli._terminal import (
    Device,
    aside,
    check_folder,
    console,
    fabric,
    show,
    stage_progress,
)
from generalizeformer.cli.evaluate import known_methods
from generalizeformer.cli.train import Apart, card_for
from generalizeformer.errors import UserError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from generalizeformer.benchmark.cells import Cell
    from generalizeformer.benchmark.side_by_side import Place
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.training._recipe import Recipe

SuiteName = Literal["main", "dynamic", "single-source", "output-shift", "ablations"]


def benchmark(
    out: Annotated[Path, tyro.conf.Positional],
    /,
    suite: tuple[SuiteName, ...] = ("main",),
    data: str = "pacs",
    root: Path | None = None,
    protocol: str | None = None,
    data_settings: tuple[str, ...] = (),
    targets: tuple[str, ...] = (),
    sources: tuple[str, ...] = (),
    looks: tuple[str, ...] = (),
    classes_apart: Apart | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    trainings: tuple[str, ...] | None = None,
    methods: tuple[str, ...] = (),
    batch_sizes: tuple[int, ...] | None = None,
    limit: int | None = None,
    selection_limit: int | None = None,
    backbone: str | None = None,
    pretrained: bool = False,
    image_size: int | None = None,
    division: Division | None = None,
    augment: Augment | None = None,
    source_steps: int | None = None,
    steps: int | None = None,
    settings: tuple[Path, ...] = (),
    paper_settings: Path | None = None,
    device: Device = "auto",
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    jobs: int = 1,
    minutes: float | None = None,
) -> None:
    """Leave every domain out once: train on the others, compare all methods on it. Run again, it goes on.

    Args:
        out: Folder for the finished cells, summary.json and page.html, with models and backbones below it, which all
            suites share. Suites other than main have a folder of their name in it for the rest.
        suite: One or more, which then share the processes. main: every domain left out once; dynamic: main's models,
            targets under looks that come alone, mixed and one after another; single-source: learned from one domain;
            output-shift: every source knows other classes; ablations: φ with one thing changed at a time.
        data: Dataset, one of `generalizeformer data list`; folder: your own images.
        root: Where the images are, as for `train`.
        protocol: Of the dataset, as for `train`.
        data_settings: Other settings of the dataset, such as drop_error=true for pacs.
        targets: Domains to leave out, one at a time; all if none is named.
        sources: Of single-source: the domains to learn from, one at a time; all if none is named.
        looks: Of dynamic: how targets look, such as rotation:30 fog:3 look:7; eight usual ones if none is named.
        classes_apart: Of output-shift: who knows which classes, as for `train`; labels if not given.
        seeds: One training per target and seed.
        trainings: generalizeformer: our φ, compared with all other methods; generalizeformer_paper: the paper's φ on
            the same backbones; ablations have names of their own. All of the suite's if not given.
        methods: To be compared, or all; see `generalizeformer methods`. The suite's usual ones if not given. What was
            compared before stays in the tables.
        batch_sizes: Images that arrive together. If not given, main: 1 20 64 128, ablations: 20 1, others: 20.
        limit: Images per target stream, in dynamic per look; all if not given.
        selection_limit: Images of each source domain's validation part that settings of methods are chosen on; all
            if not given.
        backbone: As for `train`.
        pretrained: Start from published ImageNet weights.
        image_size: Pixels per side; if not given, the dataset's own, or 224 for image files.
        division: Who decides which source images are only validated on, as for `train`.
        augment: As for `train`; domainbed if not given, for datasets of image files.
        source_steps: Steps of each backbone's training; 300 if not given.
        steps: Steps of φ's training, ours and the paper's; 400 and 10,000 if not given.
        settings: JSON files with any settings of the recipe; they override the flags, and a later one an earlier.
        paper_settings: The same for the paper's φ. Its backbones are the recipe's all the same.
        device: Where to compute; auto takes a GPU if there is one.
        precision: Of the trainings; bf16-mixed is faster on recent GPUs.
        jobs: Cells at a time, each in a process of its own on the same device; a large GPU serves several.
        minutes: Stop after about so many, and tell what there is by then; no limit if not given. Run again, it goes on:
            trainings from their last validation, methods from their last record.
    """
    from generalizeformer.benchmark.side_by_side import Place
    from generalizeformer.benchmark.suites import cells, check_options
    from generalizeformer.benchmark.time_limit import OutOfTimeError, TimeLimit

    _check(out, jobs, minutes)
    end = None if minutes is None else TimeLimit.of(minutes)
    own: dict[str, Any] = {"sources": sources, "looks": looks, "classes_apart": classes_apart}
    check_options(suite, own)
    others = pairs(data_settings)
    choice = Choice(data=data, protocol=protocol, root=root, size=image_size, settings=others)
    augment = augment or ("domainbed" if hasattr(choice.load()[1], "cache") else None)
    named = tuple(known_methods(methods)) if methods else ()
    asked = Flags(division=division, augment=augment, source_steps=source_steps, steps=steps)
    asked = replace(asked, also=_also(named))
    domains, divided = source_domains(choice, ())
    card = card_for(domains, backbone, image_size, divided)
    shared: dict[str, Any] = {
        **{"targets": targets, "seeds": seeds, "trainings": trainings, "methods": named},
        **{"batch_sizes": batch_sizes, "limit": limit, "selection_limit": selection_limit},
        **{"backbone": card.architecture, "pretrained": pretrained, "precision": precision},
        **{"preprocessing": card.preprocessing, "protocol": divided, "dataset_settings": others},
    }
    known = partial(_known, asked=asked, settings=settings, paper=_paper(steps, paper_settings))
    chosen = dict.fromkeys(suite)
    planned = {name: cells(name, domains, known(name), **own, **shared) for name in chosen}
    every = [cell for mine in planned.values() for cell in mine]
    where = fabric(device, 1, precision)
    place = Place(partial(_domains, choice), where.device.type, precision, out, _commit(), end)
    try:
        if jobs > 1:
            _side_by_side(every, place, jobs)
        else:
            _finish(every, domains, place, where)
    except OutOfTimeError:
        aside.print("time is up: run the same command again and it goes on", soft_wrap=True)
    for name, mine in planned.items():
        _tell(out, name, data, mine)


def _also(methods: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the methods that need a training of their own."""
    from generalizeformer.training._companions import trained_for

    return tuple(name for name in methods if name in trained_for())


def _check(out: Path, jobs: int, minutes: float | None) -> None:
    check_folder(out)
    if jobs < 1:
        raise UserError(f"jobs: got {jobs}; it must be at least 1")
    if minutes is not None and not minutes > 0:
        raise UserError(f"minutes: got {minutes}; it must be more than 0")


def _known(
    suite: SuiteName, asked: Flags, settings: Sequence[Path], paper: "Recipe"
) -> "dict[str, Recipe]":
    """The recipes of a suite's trainings, by name."""
    from generalizeformer.benchmark.suites import SUITES

    ours = _recipe(replace(asked, episodes=SUITES[suite].episodes), settings)
    return SUITES[suite].recipes(ours, paper)


def _recipe(asked: Flags, settings: Sequence[Path]) -> "Recipe":
    """Our φ's recipe: the usual one with what was asked for."""
    recipe = asked.recipe()
    for path in settings:
        recipe = overridden(recipe, path)
    return recipe


def _paper(steps: int | None, settings: Path | None) -> "Recipe":
    """The recipe of the paper's φ."""
    from generalizeformer.training._paper import PAPER_PHI

    recipe = replace(PAPER_PHI, meta=replace(PAPER_PHI.meta, **given(steps=steps)))
    return recipe if settings is None else overridden(recipe, settings)


def _finish(
    cells: "Sequence[Cell]", domains: "DomainDataset", place: "Place", where: "Fabric"
) -> None:
    """One cell after another, with bars."""
    from generalizeformer.benchmark.leave_one_out import finish

    for number, cell in enumerate(cells, start=1):
        words = f"cell {number} of {len(cells)}: {cell.target}, seed {cell.seed}, {cell.training}"
        aside.print(words, soft_wrap=True)
        with stage_progress() as bars:
            report = bars if place.limit is None else place.limit.watched(bars)
            finish(cell, domains, place.folder, where, report, place.commit)


def _side_by_side(cells: "Sequence[Cell]", place: "Place", jobs: int) -> None:
    """Several cells at a time, with one bar."""
    from generalizeformer.benchmark.side_by_side import finish_together

    with stage_progress() as report:
        report("cells", 0, len(cells), {})
        finish_together(cells, place, jobs, lambda _, done: report("cells", done, len(cells), {}))


def _domains(choice: Choice) -> "DomainDataset":
    """All domains of the dataset; a function of the module, so that other processes can call it."""
    return source_domains(choice, ())[0]


def _tell(out: Path, name: str, data: str, cells: "Sequence[Cell]") -> None:
    """The summary and the page as files, the tables and where they are on the screen."""
    from generalizeformer.benchmark.leave_one_out import told
    from generalizeformer.benchmark.pages import benchmark_page, refusal_sections
    from generalizeformer.benchmark.store import read, suite_folder
    from generalizeformer.benchmark.suites import SUITES
    from generalizeformer.benchmark.summary import write
    from generalizeformer.benchmark.tables import refusal_table

    records = [record for cell in cells for record in told(out, cell)]
    refused = [refusal for cell in cells for refusal in read(out, cell).refusals]
    suite, out = SUITES[name], suite_folder(out, name)
    for table in suite.tables(records, f"{data}, {suite.title}") if records else ():
        show(table)
    if refused:
        show(refusal_table(refused, "Could not take part"))
    if not records:
        console.print(f"{name}: no records yet", soft_wrap=True)
        return
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


def _commit() -> str | None:
    """The commit of a checkout that this code runs from; None where it is installed, or git is missing.

    A copy without its history, on a rented machine for one, is told by $GENERALIZEFORMER_COMMIT.
    """
    checkout = Path(__file__).parents[3]
    told = os.environ.get("GENERALIZEFORMER_COMMIT")
    if told or not (checkout / ".git").exists():
        return told
    try:
        asked = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True
        )
    except OSError:
        return None
    return asked.stdout.strip() or None
