"""A cell from beginning to end: train on its sources, then compare methods on the target left out."""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn

from generalizeformer import atomic
from generalizeformer.benchmark import store
from generalizeformer.benchmark.bench import Bench, tasks
from generalizeformer.benchmark.cells import SOURCE, Cell
from generalizeformer.benchmark.comparisons import COMPARISONS
from generalizeformer.benchmark.parts import learned_from, met, shown
from generalizeformer.benchmark.records import Record, Refusal
from generalizeformer.core.backbones import build_backbone
from generalizeformer.core.card import Card
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.splits import split_all
from generalizeformer.errors import CheckpointError
from generalizeformer.training._loop import Report
from generalizeformer.training._run import train_recipe
from generalizeformer.training._start import fingerprint, near, placed


def finish(
    cell: Cell,
    domains: DomainDataset,
    folder: Path,
    fabric: Fabric,
    report: Report | None = None,
    commit: str | None = None,
    again: Collection[str] = (),
) -> tuple[Record, ...]:
    """All records of a cell: those stored, and those that were missing, each stored as soon as it is there.

    `again`: methods whose records of other commits do not count, and are replaced one by one.
    """
    store.check_images(folder, [cell], domains)
    since, done = time.monotonic(), store.read(folder, cell).done(commit, again)
    missing = [task for task in tasks(cell) if task.key not in done]
    if missing:
        images = shown(cell, domains)
        bench = _bench(cell, domains, folder, fabric, report)
        source = fingerprint(bench.model.backbone.state_dict())
        for other in store.beside(folder, cell):
            _check_same(source, other, folder)
        for number, task in enumerate(missing, start=1):
            answer = _marked(bench.answer(task), fabric.device, commit, source, cell)
            now = time.monotonic()
            store.add(folder, cell, answer, now - since, images)
            since = now
            _let_go(fabric)
            if report is not None:
                report("comparing", number, len(missing), {})
    return told(folder, cell)


def told(folder: Path, cell: Cell) -> tuple[Record, ...]:
    """All records of a cell that are stored, the suite's usual methods first."""
    return store.read(folder, cell).told(tuple(COMPARISONS[cell.suite][cell.training].methods))


def _bench(
    cell: Cell,
    domains: DomainDataset,
    folder: Path,
    fabric: Fabric,
    report: Report | None,
) -> Bench:
    """The cell's model, trained now or before, and what it is to meet. Backbones are shared by all cells."""
    sources, recipe = learned_from(cell, domains), cell.full_recipe()
    place = folder / "models" / cell.model_name
    with atomic.alone(place):  # cells of several targets or suites may want the same model at once
        model = train_recipe(
            _backbone(cell, domains),
            sources,
            recipe,
            _card(cell, domains),
            place,
            fabric,
            report,
            backbones=folder / "backbones",
            scored=False,  # records tell more
            phi=cell.training != SOURCE,
        )
    _let_go(fabric)
    _, held = split_all(
        sources, validation=recipe.validation, seed=recipe.seed, division=recipe.division
    )
    target = near(met(cell, domains, fabric.device), fabric.device)
    return Bench(placed(model, fabric.device).eval(), target, near(held, fabric.device), cell)


def _let_go(fabric: Fabric) -> None:
    """Gives memory back that PyTorch keeps for later: cells side by side share one GPU."""
    if fabric.device.type == "cuda":
        torch.cuda.empty_cache()


def _backbone(cell: Cell, domains: DomainDataset) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return build_backbone(
            cell.backbone,
            len(domains.classes),
            channels=cell.preprocessing.channels,
            pretrained=cell.pretrained,
        )

    return build


def _card(cell: Cell, domains: DomainDataset) -> Card:
    return Card(
        classes=domains.classes,
        architecture=cell.backbone,
        preprocessing=cell.preprocessing,
        dataset=cell.dataset,
        protocol=cell.protocol,
        dataset_settings=cell.dataset_settings,
        classes_apart=None if cell.pooled else cell.classes_apart,
    )


def _check_same(source: str, stored: store.Stored, folder: Path) -> None:
    """Raises where records were made on another source model: methods are compared on one."""
    others = {record.source for record in stored.records} - {"", source}
    if others:
        raise CheckpointError(
            f"{store.place(folder, stored.cell)}: its records were made on another source model ({', '.join(others)}) "
            f"than the one trained here ({source}); bring the folders models and backbones of that time, or move the "
            "file away and compare all methods again"
        )


def _marked(
    answer: Record | Refusal, device: torch.device, commit: str | None, source: str, cell: Cell
) -> Record | Refusal:
    """An answer with what it was made by."""
    if isinstance(answer, Refusal):
        return replace(answer, commit=commit)
    training = cell.recipe.get("also", {}).get(answer.method, {})
    where = _named(device)
    return replace(answer, device=where, commit=commit, source=source, training=training)


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
