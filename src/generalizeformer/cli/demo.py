"""`demo`: the main job on embedded data, in a few minutes on a laptop."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generalizeformer.cli._data import Choice, source_domains
from generalizeformer.cli._streams import Arrivals
from generalizeformer.cli._terminal import check_folder, console, fabric, show
from generalizeformer.cli.evaluate import METHODS, compared
from generalizeformer.cli.train import card_for, run_training
from generalizeformer.errors import UserError

if TYPE_CHECKING:
    from generalizeformer.benchmark.records import Record
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.training._recipe import Recipe


def demo(
    out: Path = Path("runs/demo"),
    seeds: tuple[int, ...] = (0,),
    limit: int | None = None,
    steps: int = 400,
) -> None:
    """Train on rotated digits, compare five methods on unseen rotations, write a page with plots.

    Args:
        out: Folder for the models, records and page. What is there already is not trained again.
        seeds: One training per seed.
        limit: Images per target stream; all 1,500 if not given.
        steps: Steps of φ's training; each backbone gets three quarters of it.
    """
    import torch

    from generalizeformer.benchmark.figures import check_plots
    from generalizeformer.benchmark.pages import demo_page
    from generalizeformer.benchmark.records import write
    from generalizeformer.benchmark.tables import accuracy_table

    if not seeds:
        raise UserError("seeds: none was given; give at least one, such as 0")
    check_folder(out)
    check_plots()  # before the minutes, not after them
    started = time.monotonic()
    torch.set_num_threads(min(2, torch.get_num_threads()))  # so small a network only waits for more
    records: list[Record] = []
    for seed in seeds:
        console.print(f"seed {seed}: training on digits turned by 15 to 75 degrees")
        model = _train(out / f"seed-{seed}", seed, steps)
        records += _compare(model, seed, limit)
    write(out / "records.json", records)
    show(accuracy_table(records, "Accuracy on unseen rotations (0° and 90°), %"))
    sources, changes, images = _look_inside(model, limit)
    demo_page(out / "page.html", records, sources, changes, images)
    console.print(
        f"{time.monotonic() - started:.0f} s; the page is {out / 'page.html'}", soft_wrap=True
    )


def recipe(seed: int, steps: int) -> "Recipe":
    """The demo's settings: only the outer angles are left out, because the inner ones are no shift at all."""
    from generalizeformer.training._recipe import Recipe
    from generalizeformer.training.erm import Config as ErmConfig
    from generalizeformer.training.meta import Config as MetaConfig

    return Recipe(
        episodes="held-out",
        held_out=("15", "75"),
        erm=ErmConfig(steps=max(1, 3 * steps // 4), per_domain=16, learning_rate=3e-3),
        meta=MetaConfig(steps=steps, images=160, learning_rate=3e-3),
        seed=seed,
    )


def _train(folder: Path, seed: int, steps: int) -> "GeneralizeFormer":
    sources, protocol = source_domains(Choice(data="digits"), ())
    card, where = card_for(sources, "digits-small", None, protocol), fabric("cpu", 1, "32-true")
    return run_training(sources, recipe(seed, steps), card, folder, False, where)


def _compare(model: "GeneralizeFormer", seed: int, limit: int | None) -> "list[Record]":
    from generalizeformer.data.datasets import digits

    targets = digits.targets(digits.Config())
    arrivals = Arrivals(limit=limit, seed=seed).streams(targets.names)
    return compared(model, targets, METHODS, arrivals, run_seed=seed)


def _look_inside(
    model: "GeneralizeFormer", limit: int | None
) -> tuple[dict[str, float], dict[str, Any], dict[str, Any]]:
    """Plain accuracy at the source angles, what φ changes, and a few pictures."""
    from generalizeformer.benchmark.figures import few
    from generalizeformer.benchmark.runner import run
    from generalizeformer.data.datasets import digits
    from generalizeformer.data.streams import Stream

    angles = digits.SOURCES["outer"]
    known = digits.targets(digits.Config(target_angles=angles))
    arrivals = {angle: Stream((angle,), 20, 0, limit) for angle in known.names}
    plain = {a: run(model, known, "source", s, 0).accuracy for a, s in arrivals.items()}
    unseen = digits.targets(digits.Config())
    changes = {
        f"{domain.name}°": model.explain(model.card.preprocessing(few(domain.images, 20)))
        for domain in (unseen["0"], known["45"], unseen["90"])
    }
    pictures = {f"{d.name}°": few(d.images, 12) for d in (*known.domains, *unseen.domains)}
    return plain, changes, pictures
