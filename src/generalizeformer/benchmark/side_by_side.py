"""Cells side by side: several processes share the device, each with its own copy of the data."""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning_fabric import Fabric

from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.leave_one_out import finish
from generalizeformer.benchmark.time_limit import TimeLimit
from generalizeformer.data.domains import DomainDataset

# How often a cell that finds no memory tries in all, and how many seconds it waits in between.
TRIES, PATIENCE = 30, 10
Tell = Callable[[Cell, int], None]
"""Which cell was finished, and how many are."""


@dataclass(frozen=True)
class Place:
    """What every process needs: how to get the domains, where to compute, where results lie."""

    load: Callable[[], DomainDataset]
    accelerator: str
    precision: str
    folder: Path
    commit: str | None = None
    limit: TimeLimit | None = None


def finish_together(cells: Sequence[Cell], place: Place, jobs: int, tell: Tell) -> None:
    """Up to `jobs` cells at a time. Their records are stored. Raises OutOfTimeError where some are left.

    A backbone that several cells need is trained by the first of them, while the others wait for it. Begun in
    the order given, so that an end in the middle leaves whole seeds behind.
    """
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(min(jobs, len(cells)), context, _begin, (place, jobs)) as pool:
        futures = {pool.submit(_finish, cell): cell for cell in cells}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                tell(futures[future], done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Here:
    """This process: its data and its part of the device."""

    place: Place
    domains: DomainDataset
    fabric: Fabric


def _begin(place: Place, jobs: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    _Here.place, _Here.domains = place, place.load()
    _Here.fabric = Fabric(accelerator=place.accelerator, devices=1, precision=place.precision)  # type: ignore[arg-type]


def _finish(cell: Cell) -> None:
    place = _Here.place
    report = None if place.limit is None else place.limit.watched()
    for tries_left in reversed(range(TRIES)):
        try:
            finish(cell, _Here.domains, place.folder, _Here.fabric, report, place.commit)
            return
        except torch.OutOfMemoryError:
            if not tries_left:
                raise
        if place.limit is not None:
            place.limit.check()
        # Others hold it now, and will let go of it. What is stored stays.
        torch.cuda.empty_cache()
        time.sleep(PATIENCE)
