"""Cells side by side: several processes share the device, each with its own copy of the data."""

import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import torch
from lightning_fabric import Fabric

from generalizeformer import memory
from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.leave_one_out import finish
from generalizeformer.benchmark.time_limit import TimeLimit
from generalizeformer.data.domains import DomainDataset
from generalizeformer.errors import UserError

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
    again: tuple[str, ...] = ()  # methods whose records of other commits are replaced


def finish_together(cells: Sequence[Cell], place: Place, jobs: int, tell: Tell) -> None:
    """Up to `jobs` cells at a time. Their records are stored. Raises OutOfTimeError where some are left.

    A backbone that several cells need is trained by the first of them, while the others wait for it. Begun in
    about the order given (see `_next`), so that an end in the middle leaves whole seeds behind.
    """
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    waiting, at_work, done = list(cells), dict[Future[None], Cell](), 0
    with ProcessPoolExecutor(min(jobs, len(cells)), context, _begin, (place, jobs)) as pool:
        try:
            while waiting or at_work:
                while len(at_work) < jobs and (cell := _next(waiting, at_work.values())):
                    waiting.remove(cell)
                    at_work[pool.submit(_finish, cell)] = cell
                for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                    future.result()
                    done += 1
                    tell(at_work.pop(future), done)
        except BrokenProcessPool:
            raise UserError(
                f"jobs: got {jobs}, and one of the processes was killed, probably for lack of memory; give fewer "
                "--jobs and run the same command again: it goes on from what is stored"
            ) from None
        except (
            KeyboardInterrupt
        ):  # from a terminal it reaches all processes, from elsewhere this one
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _next(waiting: Sequence[Cell], at_work: Collection[Cell]) -> Cell | None:
    """The first cell whose source model nobody is at; else the first whose file nobody writes, None where all are.

    Parts of a plan may add to the same file: two at once would make records twice.
    """
    models = {cell.source_model.model_name for cell in at_work}
    files = {(cell.name, cell.basis()) for cell in at_work}
    free = [cell for cell in waiting if (cell.name, cell.basis()) not in files]
    others = (cell for cell in free if cell.source_model.model_name not in models)
    return next(others, next(iter(free), None))


class _Here:
    """This process: its data and its part of the device."""

    place: Place
    domains: DomainDataset
    fabric: Fabric


def _begin(place: Place, jobs: int) -> None:
    Thread(target=_leave_with_parent, daemon=True).start()
    if place.accelerator == "cpu":  # a GPU's host has no room for all that many processes keep
        memory.keep()
    if not os.environ.get("OMP_NUM_THREADS"):  # which PyTorch follows by itself
        torch.set_num_threads(max(1, _cores() // jobs))
    _Here.place, _Here.domains = place, place.load()
    _Here.fabric = Fabric(accelerator=place.accelerator, devices=1, precision=place.precision)  # type: ignore[arg-type]


def _leave_with_parent() -> None:
    """Ends this process when the one that began it is gone, however it went: nobody would stop it any more.

    What is stored appears whole or not at all, so it may end at any moment.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _cores() -> int:
    """Those that this process may use: a machine may lend it a few of many."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _finish(cell: Cell) -> None:
    place = _Here.place
    report = None if place.limit is None else place.limit.watched()
    for tries_left in reversed(range(TRIES)):
        try:
            given = (_Here.domains, place.folder, _Here.fabric, report, place.commit)
            finish(cell, *given, place.again)
            return
        except torch.OutOfMemoryError:
            if not tries_left:
                raise
        if place.limit is not None:
            place.limit.check()
        # Others hold it now, and will let go of it. What is stored stays.
        torch.cuda.empty_cache()
        time.sleep(PATIENCE)
