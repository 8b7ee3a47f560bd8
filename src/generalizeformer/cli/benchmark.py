"""`benchmark`: every domain left out once, all methods on the same source models."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
from generalizeformer.cli.train import card_for
from generalizeformer.errors import UserError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from generalizeformer.benchmark.cells import Cell
    from generalizeformer.benchmark.records import Record
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.training._recipe import Recipe

TRAININGS = ("generalizeformer", "generalizeformer_paper")


def benchmark(
    out: Annotated[Path, tyro.conf.Positional],
    /,
    data: str = "pacs",
    root: Path | None = None,
    protocol: str | None = None,
    data_settings: tuple[str, ...] = (),
    targets: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0, 1, 2),
    trainings: tuple[str, ...] = TRAININGS,
    batch_sizes: tuple[int, ...] = (1, 20, 64, 128),
    limit: int | None = None,
    selection_limit: int | None = None,
    backbone: str | None = None,
    pretrained: bool = False,
    image_size: int | None = None,
    division: Division | None = None,
    augment: Augment | None = None,
    source_steps: int | None = None,
    steps: int | None = None,
    settings: Path | None = None,
    paper_settings: Path | None = None,
    device: Device = "auto",
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
) -> None:
    """Leave every domain out once: train on the others, compare all methods on it. Run again, it goes on.

    Args:
        out: Folder for the finished cells, summary.json and page.html, with models and backbones below it.
        data: Dataset, one of `generalizeformer data list`; folder: your own images.
        root: Where the images are, as for `train`.
        protocol: Of the dataset, as for `train`.
        data_settings: Other settings of the dataset, such as drop_error=true for pacs.
        targets: Domains to leave out, one at a time; all if none is named.
        seeds: One training per target and seed.
        trainings: generalizeformer: our φ, compared with all other methods; generalizeformer_paper: the paper's φ on
            the same backbones.
        batch_sizes: Images that arrive together.
        limit: Images per target stream; all if not given.
        selection_limit: Images of each source domain's validation part that settings of methods are chosen on; all
            if not given.
        backbone: As for `train`.
        pretrained: Start from published ImageNet weights.
        image_size: Pixels per side; if not given, the dataset's own, or 224 for image files.
        division: Who decides which source images are only validated on, as for `train`.
        augment: As for `train`; domainbed if not given, for datasets of image files.
        source_steps: Steps of each backbone's training; 300 if not given.
        steps: Steps of φ's training, ours and the paper's; 400 and 10,000 if not given.
        settings: JSON file with any settings of the recipe; it overrides the flags.
        paper_settings: The same for the paper's φ. Its backbones are the recipe's all the same.
        device: Where to compute; auto takes a GPU if there is one.
        precision: Of the trainings; bf16-mixed is faster on recent GPUs.
    """
    from generalizeformer.benchmark.cells import plan, recipes

    check_folder(out)
    others = pairs(data_settings)
    choice = Choice(data=data, protocol=protocol, root=root, size=image_size, settings=others)
    augment = augment or ("domainbed" if hasattr(choice.load()[1], "cache") else None)
    main = _recipe(division, augment, source_steps, steps, settings)
    known = recipes(main, _paper(steps, paper_settings))
    domains, divided = source_domains(choice, ())
    card = card_for(domains, backbone, image_size, divided)
    cells = plan(
        domains,
        known,
        targets=targets,
        seeds=seeds,
        trainings=trainings,
        batch_sizes=batch_sizes,
        limit=limit,
        selection_limit=selection_limit,
        backbone=card.architecture,
        pretrained=pretrained,
        preprocessing=card.preprocessing,
        protocol=divided,
        dataset_settings=others,
        precision=precision,
    )
    records = _finished(cells, domains, out, fabric(device, 1, precision))
    _tell(out, data, records)


def _recipe(
    division: Division | None,
    augment: Augment | None,
    source_steps: int | None,
    steps: int | None,
    settings: Path | None,
) -> "Recipe":
    """Our φ's recipe: the usual one with what was asked for."""
    asked = Flags(division=division, augment=augment, source_steps=source_steps, steps=steps)
    recipe = asked.recipe()
    return recipe if settings is None else overridden(recipe, settings)


def _paper(steps: int | None, settings: Path | None) -> "Recipe":
    """The recipe of the paper's φ."""
    from generalizeformer.training._paper import PAPER_PHI

    recipe = replace(PAPER_PHI, meta=replace(PAPER_PHI.meta, **given(steps=steps)))
    return recipe if settings is None else overridden(recipe, settings)


def _finished(
    cells: "Sequence[Cell]", domains: "DomainDataset", out: Path, where: "Fabric"
) -> "list[Record]":
    """The records of all cells, one cell after another, with bars."""
    from generalizeformer.benchmark.leave_one_out import finish

    commit = _commit()
    records: list[Record] = []
    for number, cell in enumerate(cells, start=1):
        words = f"cell {number} of {len(cells)}: {cell.target}, seed {cell.seed}, {cell.training}"
        aside.print(words, soft_wrap=True)
        with stage_progress() as report:
            records += finish(cell, domains, out, where, report, commit)
    return records


def _tell(out: Path, data: str, records: "Sequence[Record]") -> None:
    """The summary and the page as files, the table and where they are on the screen."""
    from generalizeformer.benchmark.pages import benchmark_page
    from generalizeformer.benchmark.summary import write
    from generalizeformer.benchmark.tables import accuracy_table

    write(out / "summary.json", records)
    show(accuracy_table(records, f"{data}, every domain left out once: accuracy, %"))
    console.print(f"records: {out / 'cells'}", soft_wrap=True)
    console.print(f"summary: {out / 'summary.json'}", soft_wrap=True)
    try:
        benchmark_page(out / "page.html", f"Leave one domain out: {data}", records)
        console.print(f"page: {out / 'page.html'}", soft_wrap=True)
    except UserError as error:  # the answer is there without its pictures
        console.print(f"no page: {error}", soft_wrap=True)


def _commit() -> str | None:
    """The commit of a checkout that this code runs from; None where it is installed, or git is missing."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return None
    try:
        asked = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True
        )
    except OSError:
        return None
    return asked.stdout.strip() or None
