"""Plans: which cells a benchmark is made of. What cannot run is told here, before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

from generalizeformer.benchmark.cells import SOURCE, Cell
from generalizeformer.benchmark.parts import known_to
from generalizeformer.config import to_dict
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.targets import parse
from generalizeformer.errors import DataError, UserError
from generalizeformer.training._paper import PAPER_PHI
from generalizeformer.training._recipe import Recipe


class Task(NamedTuple):
    """A target, the domains to learn from, and the targets where they are several.

    Targets with the same domains to learn from share their model where these are named.
    """

    target: str
    sources: tuple[str, ...] = ()  # (): all others
    targets: tuple[str, ...] = ()


def recipes(main: Recipe, paper: Recipe = PAPER_PHI) -> dict[str, Recipe]:
    """The recipe of every training by its name, all on the main one's backbones.

    What compared methods have to be trained for is trained beside the source model.
    """
    for where, recipe in (("", main), ("paper_settings: ", paper)):
        if recipe.episodes == "joint":
            raise DataError(
                f"{where}episodes are 'joint', which train the backbone together with φ, so that methods would start "
                "from different ones; use held-out or looks"
            )
    paper = replace(
        paper,
        erm=main.erm,
        validation=main.validation,
        division=main.division,
        meta=replace(paper.meta, augmentation=main.meta.augmentation),
    )
    ours = replace(main, also={})
    return {SOURCE: main, "generalizeformer": ours, "generalizeformer_paper": paper}


def left_out(
    domains: DomainDataset, targets: Sequence[str], sources: Sequence[str] = ()
) -> list[Task]:
    """Every target, or every domain, with all others to learn from.

    Where the dataset keeps domains for targets, these, each with all that it does not keep.
    """
    _check_domains(domains, targets)
    learned = _learned(domains) if _kept(domains) else ()
    return [Task(target, learned) for target in _met(domains, targets)]


def several(
    domains: DomainDataset, targets: Sequence[str], sources: Sequence[str] = ()
) -> list[Task]:
    """These targets with the sources, or all other domains, to learn from.

    Domains that the dataset keeps for targets are learned from only where they are named: they may hold the images
    of the targets once more, at another angle.
    """
    _check_domains(domains, (*targets, *sources))
    met = tuple(dict.fromkeys(targets))
    if len(met) < 2:
        raise UserError(
            f"targets: got {', '.join(met) or 'none'}; name two or more, as they are met alone and mixed, out of: "
            f"{', '.join(domains.names)}"
        )
    others = [name for name in domains.names if name not in (*met, *domains.kept)]
    learned = tuple(dict.fromkeys(sources or others))
    if not learned or {*learned} & {*met}:
        raise DataError(
            f"targets are {', '.join(met)} and sources {', '.join(learned) or 'none'}; no target can be learned from, "
            "so leave at least one domain to learn from"
        )
    return [Task("+".join(met), learned, met)]


def from_each(domains: DomainDataset, targets: Sequence[str], sources: Sequence[str]) -> list[Task]:
    """Every source, or every domain, by itself, with every other one as its target.

    Where the dataset keeps domains for targets, these are met and the others learned from. The sources take turns:
    cells that run at the same time then train different models.
    """
    _check_domains(domains, (*targets, *sources))
    met = _met(domains, targets)
    turns = zip_longest(
        *(
            [Task(target, (source,)) for target in met if target != source]
            for source in _learned(domains, sources)
        )
    )
    tasks = [task for turn in turns for task in turn if task is not None]
    if not tasks:
        raise DataError(
            f"sources and targets are both {', '.join(sources)}; name a target that is not learned from"
        )
    return tasks


def _met(domains: DomainDataset, named: Sequence[str]) -> tuple[str, ...]:
    """The targets named, else those that the dataset keeps, else every domain.

    Where it keeps some, no other can be one: rotated sets show the images of a source at every source's angle.
    """
    kept = _kept(domains)
    if kept and (others := [name for name in named if name not in kept]):
        raise UserError(
            f"targets: got {', '.join(others)}, but {domains.name} has such to learn from, and its other sources may "
            f"show the same images; choose from those that it keeps for targets: {', '.join(kept)}"
        )
    return tuple(dict.fromkeys(named or kept or domains.names))


def _learned(domains: DomainDataset, named: Sequence[str] = ()) -> tuple[str, ...]:
    """The sources named, or every domain that the dataset does not keep for targets."""
    free = [name for name in domains.names if name not in domains.kept]
    if not free:
        raise DataError(
            f"{domains.name}: it keeps all of its domains for targets ({', '.join(domains.kept)}); give it settings "
            "that leave some to learn from"
        )
    if kept := [name for name in named if name in domains.kept]:
        raise UserError(
            f"sources: got {', '.join(kept)}, but {domains.name} keeps such for targets, which may show the same "
            f"images; choose from: {', '.join(free)}"
        )
    return tuple(dict.fromkeys(named or free))


def _kept(domains: DomainDataset) -> tuple[str, ...]:
    """The domains that are there and that the dataset keeps for targets."""
    return tuple(name for name in domains.names if name in domains.kept)


def plan(
    domains: DomainDataset,
    known: Mapping[str, Recipe],
    tasks: Sequence[Task],
    *,
    seeds: Sequence[int],
    trainings: Sequence[str],
    **shared: Any,
) -> list[Cell]:
    """The cells of a benchmark: for every seed, every task, every training."""
    _check_given(known, seeds, trainings, shared["batch_sizes"])
    _check_looks(domains, tasks, shared.get("looks", ()))
    shared["batch_sizes"] = tuple(dict.fromkeys(shared["batch_sizes"]))
    return [
        _cell(domains, replace(known[training], seed=seed), task, training, shared)
        for seed in dict.fromkeys(seeds)
        for task in tasks
        for training in dict.fromkeys(trainings)
    ]


def _cell(
    domains: DomainDataset, recipe: Recipe, task: Task, training: str, shared: dict[str, Any]
) -> Cell:
    own: dict[str, Any] = {**task._asdict(), "seed": recipe.seed}
    if training != SOURCE:
        own["methods"] = ()  # ours alone
    cell = Cell(
        dataset=domains.name, recipe=to_dict(recipe.decided()), training=training, **(shared | own)
    )
    taught = known_to(cell, domains)
    recipe.check(taught, training != SOURCE)
    return replace(cell, recipe=to_dict(_pooled(recipe, taught).decided())) if cell.pooled else cell


def _pooled(recipe: Recipe, sources: DomainDataset) -> Recipe:
    """The recipe for all sources as one domain, with as many images a step as for several."""
    if recipe.division == "official":
        raise DataError(
            "division is 'official', whose lists are of single domains, but here all sources are one; use seeded "
            "or domainbed"
        )
    if recipe.erm is None:  # the backbone is trained already, so there are no steps
        return recipe
    together = recipe.erm.per_domain * len(sources.names)
    return replace(recipe, erm=replace(recipe.erm, per_domain=together))


def _check_domains(domains: DomainDataset, named: Sequence[str]) -> None:
    if len(domains.names) < 2:
        raise DataError(
            f"{domains.name}: it has one domain ({domains.names[0]!r}), and leaving it out leaves nothing to learn "
            "from; give a dataset of two or more"
        )
    for name in named:
        domains.index(name)


def _check_given(
    known: Mapping[str, Recipe],
    seeds: Sequence[int],
    trainings: Sequence[str],
    batch_sizes: Sequence[int],
) -> None:
    examples = {"seeds": "0", "trainings": "generalizeformer", "batch sizes": "20"}
    given = {"seeds": seeds, "trainings": trainings, "batch sizes": batch_sizes}
    for name, values in given.items():
        if not values:
            raise UserError(f"{name}: none was given; give at least one, such as {examples[name]}")
    for training in trainings:
        if training not in known:
            raise UserError(f"trainings: there is no {training!r}; choose from: {', '.join(known)}")


def _check_looks(domains: DomainDataset, tasks: Sequence[Task], looks: Sequence[str]) -> None:
    for task in tasks:
        for look in looks:
            parse(f"{task.target}@{look}", domains.names)
    if len(looks) == 1:
        raise UserError(f"looks: got {looks[0]!r} alone; give two or more, as they are mixed")
