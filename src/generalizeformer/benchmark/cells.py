"""Cells: the smallest parts of a benchmark that are finished one by one. Plain data with a name and a key."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

from generalizeformer.config import from_dict, to_dict
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream
from generalizeformer.errors import DataError, UserError
from generalizeformer.training._paper import PAPER_PHI
from generalizeformer.training._recipe import Recipe

# What is evaluated, not what is trained: a model is kept when one of these changes.
EVALUATION = ("batch_sizes", "limit", "selection_limit")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training for one target with one seed, and the streams it is evaluated on."""

    dataset: str
    target: str
    seed: int  # of the training, the division and the order of arrival
    training: str  # one of `recipes`
    recipe: dict[str, Any]  # as plain data, with this seed
    backbone: str
    pretrained: bool
    preprocessing: Preprocessing  # the image size among it
    batch_sizes: tuple[int, ...]
    limit: int | None = None  # images of the target stream; None: all
    selection_limit: int | None = None  # images of each source that settings are chosen on
    protocol: str | None = None
    dataset_settings: dict[str, Any] = field(default_factory=dict)
    precision: str = "32-true"

    def __post_init__(self) -> None:
        self.streams()  # what no stream can be is told before anything is trained
        Stream((self.target,), 1, self.seed, self.selection_limit)

    @property
    def name(self) -> str:
        """A few words that are a file name and differ between the cells of a benchmark."""
        return f"{quote(self.target, safe='')}-seed-{self.seed}-{self.training}"

    @property
    def model_name(self) -> str:
        """The same with a digest of all that the trained model depends on."""
        trained = {key: value for key, value in asdict(self).items() if key not in EVALUATION}
        return f"{self.name}-{_digest(trained)[:12]}"

    def key(self) -> str:
        """What is the same on every machine, and another when anything in the cell is."""
        return _digest(asdict(self))

    def streams(self) -> list[Stream]:
        """The target by itself in every batch size."""
        return [Stream((self.target,), size, self.seed, self.limit) for size in self.batch_sizes]

    def full_recipe(self) -> Recipe:
        """The recipe as the training takes it."""
        return from_dict(Recipe, self.recipe)


def recipes(main: Recipe, paper: Recipe = PAPER_PHI) -> dict[str, Recipe]:
    """The recipe of every training by its name, all on the main one's backbones."""
    if main.episodes == "joint":
        raise DataError(
            "episodes are 'joint', which train the backbone together with φ, so that methods would start from "
            "different ones; use held-out or looks"
        )
    paper = replace(
        paper,
        erm=main.erm,
        validation=main.validation,
        division=main.division,
        meta=replace(paper.meta, augmentation=main.meta.augmentation),
    )
    return {"generalizeformer": main, "generalizeformer_paper": paper}


def plan(
    domains: DomainDataset,
    known: Mapping[str, Recipe],
    *,
    targets: Sequence[str],
    seeds: Sequence[int],
    trainings: Sequence[str],
    **shared: Any,
) -> list[Cell]:
    """The cells of a benchmark: for every seed, every target, every training. What cannot run is told here."""
    _check(domains, known, targets, seeds, trainings, shared["batch_sizes"])
    cells = []
    for seed in dict.fromkeys(seeds):
        for target in dict.fromkeys(targets or domains.names):
            for training in dict.fromkeys(trainings):
                recipe = replace(known[training], seed=seed)
                recipe.check(domains.without([target]))
                own: dict[str, Any] = {"target": target, "seed": seed, "training": training}
                cells.append(Cell(dataset=domains.name, recipe=to_dict(recipe), **own, **shared))
    return cells


def _check(
    domains: DomainDataset,
    known: Mapping[str, Recipe],
    targets: Sequence[str],
    seeds: Sequence[int],
    trainings: Sequence[str],
    batch_sizes: Sequence[int],
) -> None:
    examples = {"seeds": "0", "trainings": "generalizeformer", "batch sizes": "20"}
    given = {"seeds": seeds, "trainings": trainings, "batch sizes": batch_sizes}
    for name, values in given.items():
        if not values:
            raise UserError(f"{name}: none was given; give at least one, such as {examples[name]}")
    if len(domains.names) < 2:
        raise DataError(
            f"{domains.name}: it has one domain ({domains.names[0]!r}), and leaving it out leaves nothing to learn "
            "from; give a dataset of two or more"
        )
    for target in targets:
        domains.index(target)
    for training in trainings:
        if training not in known:
            raise UserError(f"trainings: there is no {training!r}; choose from: {', '.join(known)}")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
