"""A cell from beginning to end: train on its sources, then compare methods on the target left out."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn

from generalizeformer import atomic
from generalizeformer.benchmark import store
from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.comparisons import COMPARISONS
from generalizeformer.benchmark.parts import learned_from, met
from generalizeformer.benchmark.records import Record
from generalizeformer.benchmark.runner import run
from generalizeformer.benchmark.selection import best_in_hindsight, choose, grid
from generalizeformer.core.backbones import build_backbone
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.splits import split_all
from generalizeformer.data.streams import Stream
from generalizeformer.training._loop import Report
from generalizeformer.training._recipe import train_recipe
from generalizeformer.training._start import near


def finish(
    cell: Cell,
    domains: DomainDataset,
    folder: Path,
    fabric: Fabric,
    report: Report | None = None,
    commit: str | None = None,
) -> tuple[Record, ...]:
    """The records of a cell: those stored, or new ones, which are stored once all of them are there."""
    if (stored := store.read(folder, cell)) is None:
        started = time.monotonic()
        records = tuple(run_cell(cell, domains, folder, fabric, report))
        store.write(
            folder,
            store.Finished(
                cell=cell,
                records=records,
                seconds=time.monotonic() - started,
                device=_named(fabric.device),
                commit=commit,
            ),
        )
        stored = store.read(folder, cell)  # as they will be read, so that pages do not change later
        assert stored is not None
    return stored.records


def run_cell(
    cell: Cell, domains: DomainDataset, folder: Path, fabric: Fabric, report: Report | None = None
) -> list[Record]:
    """The records of a cell, made now. Backbones are trained once for all cells of a folder."""
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
        )
    _, held = split_all(
        sources, validation=recipe.validation, seed=recipe.seed, division=recipe.division
    )
    target = near(met(cell, domains, fabric.device), fabric.device)
    bench = _Bench(model.eval(), target, near(held, fabric.device), cell, report)
    return [record for stream in cell.streams() for record in bench.records(stream)]


class _Bench:
    """A trained model, the target that methods meet, and the source images that settings are chosen on."""

    def __init__(
        self,
        model: GeneralizeFormer,
        target: DomainDataset,
        held: DomainDataset,
        cell: Cell,
        report: Report | None,
    ) -> None:
        self.model, self.target, self.held, self.cell = model, target, held, cell
        self.plan, self.report, self.done = COMPARISONS[cell.suite][cell.training], report, 0
        self.sources = held if self.plan.forgetting else None
        # Streams of one batch size share these.
        self.choices: dict[tuple[str, int], dict[str, object]] = {}
        self.before: dict[int, dict[str, float]] = {}

    def records(self, stream: Stream) -> list[Record]:
        """Every method on the target, with settings chosen on the sources; then the oracles."""
        found = []
        for name, method in self.plan.methods.items():
            settings = self._chosen(method, stream.batch_size)
            record = self._run(method, stream, settings, self.sources)
            found.append(replace(record, method=name))
            self._tell()
        for method in self.plan.hindsight:
            found.append(self._oracle(method, stream))
            self._tell()
        return found

    def _oracle(self, method: str, stream: Stream) -> Record:
        """The best of the grid on the target; what it does to the sources is measured for that one only."""
        tried = [self._run(method, stream, settings) for settings in grid(method)]
        best = best_in_hindsight(tried)
        again = self._run(method, stream, best.settings, self.sources)
        return replace(again, method=best.method)

    def _chosen(self, method: str, batch_size: int) -> dict[str, object]:
        if len(grid(method)) == 1:
            return grid(method)[0]
        if (method, batch_size) not in self.choices:
            seed, limit = self.cell.seed, self.cell.selection_limit
            chosen = choose(self.model, self.held, method, batch_size, seed, limit)
            self.choices[method, batch_size] = chosen.settings
        return self.choices[method, batch_size]

    def _run(
        self,
        method: str,
        stream: Stream,
        settings: dict[str, object],
        sources: DomainDataset | None = None,
    ) -> Record:
        given, seed, before = {method: settings}, self.cell.seed, self.before
        known = before.get(stream.batch_size) if sources is not None else None
        record = run(self.model, self.target, method, stream, seed, given, sources, known)
        if sources is not None:
            before[stream.batch_size] = record.sources_before
        return record

    def _tell(self) -> None:
        self.done += 1
        rows = len(self.plan.methods) + len(self.plan.hindsight)
        if self.report is not None:
            self.report("comparing", self.done, rows * len(self.cell.streams()), {})


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
    )


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
