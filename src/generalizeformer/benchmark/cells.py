"""Cells: the smallest parts of a benchmark that are finished one by one. Plain data with a name and a key."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

from generalizeformer import atomic
from generalizeformer.config import from_dict
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.streams import Stream
from generalizeformer.training._recipe import Recipe, lasting, readable

# What is evaluated, not what is trained: a model is kept when one of these changes.
EVALUATION = ("batch_sizes", "methods", "limit", "selection_limit", "suite", "looks", "targets")
# What only adds streams and methods: records of the others stay as they are.
ADDITIONS = ("batch_sizes", "methods")
# Newer settings, which older records do not know: a cell that has none is found as it was before.
NEWER = ("targets",)
SOURCE = "source"
"""The training that makes the source model and no φ: what all methods but ours are compared on."""
# What a source model depends on in a recipe: another φ leaves it, and the records made with it, as they are.
LEARNED = ("erm", "validation", "division", "seed")
# What cells whose records are told together may differ in, beside what only adds to them.
PLACES = ("target", "sources", "seed")
ROOM = "-" * 40  # what follows in a file's name: a training


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training for one target with one seed, and the streams it is evaluated on."""

    dataset: str
    target: str
    seed: int  # of the training, the division and the order of arrival
    training: str  # one of the suite's
    recipe: dict[str, Any]  # as plain data, with this seed
    backbone: str
    pretrained: bool
    preprocessing: Preprocessing  # the image size among it
    batch_sizes: tuple[int, ...]
    limit: int | None = None  # images of the target stream, or of every look; None: all
    selection_limit: int | None = None  # images of each source that settings are chosen on
    protocol: str | None = None
    dataset_settings: dict[str, Any] = field(default_factory=dict)
    precision: str = "32-true"
    suite: str = "main"
    methods: tuple[str, ...] = ()  # to be compared; (): the suite's usual ones
    looks: tuple[str, ...] = ()  # changes such as "fog:3" that the target comes under; (): as it is
    targets: tuple[str, ...] = ()  # domains that come alone, mixed and in turn; (): the target only
    sources: tuple[str, ...] = ()  # domains to learn from; (): all but the target
    classes_apart: str | None = None  # each source knows some classes only: "labels", "0", "1", …
    pooled: bool = False  # all sources are learned from as one domain

    def __post_init__(self) -> None:
        self.streams()  # what no stream can be is told before anything is trained
        Stream((self.target,), 1, self.seed, self.selection_limit)

    @property
    def name(self) -> str:
        """A few words that are a file name and differ between the cells of a suite."""
        met = "+".join(map(_quoted, self.targets or (self.target,)))
        return f"{_short(f'{met}-{self._taught}')}-{self.training}"

    @property
    def model_name(self) -> str:
        """The same with a digest of all that the trained model depends on; cells of one model share it."""
        if not self.sources:
            return f"{self.name}-{self._digest(EVALUATION)[:12]}"
        return (
            f"{_short(self._taught)}-{self.training}-{self._digest((*EVALUATION, 'target'))[:12]}"
        )

    @property
    def domains(self) -> set[str]:
        """Those that it names."""
        return {*(self.targets or (self.target,)), *self.sources}

    @property
    def source_model(self) -> "Cell":
        """The cell of the same source model without φ."""
        return replace(self, training=SOURCE)

    @property
    def _taught(self) -> str:
        sources = "+".join(map(_quoted, self.sources))
        return f"{f'from-{sources}-' if sources else ''}seed-{self.seed}"

    def key(self) -> str:
        """What is the same on every machine, and another when anything in the cell is."""
        return self._digest()

    def basis(self) -> str:
        """The same for cells whose records can be put together."""
        return self._digest(ADDITIONS)

    def differences(self, other: "Cell") -> list[str]:
        """The settings for which two cells are not of one kind, with the values of both."""
        one, two = (_leaves(cell._seedless()._content(cell._free())) for cell in (self, other))
        names = [n for n in {**one, **two} if one.get(n) != two.get(n)]
        return [f"{name} ({one.get(name)!r}, {two.get(name)!r})" for name in names]

    def kind(self) -> str:
        """The same for cells that differ in nothing but what is learned from, what is met, and the seed.

        Of several targets, in the seed alone: their rows are of one set of targets, and of what one model learned from.
        """
        return self._seedless()._digest(self._free())

    def _seedless(self) -> "Cell":
        return replace(self, recipe=self.recipe | {"seed": 0})

    def _free(self) -> tuple[str, ...]:
        """What cells of one kind may differ in."""
        return (*ADDITIONS, *(("seed",) if self.targets else PLACES))

    def streams(self) -> list[Stream]:
        """The target in every batch size: by itself, or each of several alone, then all mixed, then in turn."""
        sizes, words = self.batch_sizes, self.words
        if not words:
            return [Stream((self.target,), size, self.seed, self.limit) for size in sizes]
        return [stream for size in sizes for stream in self._changing(words, size)]

    @property
    def words(self) -> tuple[str, ...]:
        """What streams call the targets that come alone, mixed and in turn; () where there is one target as it is."""
        return self.targets or tuple(f"{self.target}@{look}" for look in self.looks)

    def _changing(self, words: tuple[str, ...], size: int) -> list[Stream]:
        together = None if self.limit is None else self.limit * len(words)
        return [
            *(Stream((word,), size, self.seed, self.limit) for word in words),
            Stream(words, size, self.seed, together),
            Stream(words, size, self.seed, together, order="in_turn"),
        ]

    def full_recipe(self) -> Recipe:
        """The recipe as the training takes it."""
        return from_dict(Recipe, readable(self.recipe))

    def _digest(self, without: Collection[str] = ()) -> str:
        content = self._content(without)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _content(self, without: Collection[str]) -> dict[str, Any]:
        content = {name: value for name, value in asdict(self).items() if name not in without}
        content = {name: value for name, value in content.items() if value or name not in NEWER}
        content["recipe"] = self._decisive()
        return content

    def _decisive(self) -> dict[str, Any]:
        """The settings of the recipe that the trained model depends on.

        What compared methods learn beside it changes neither the model nor others' records; theirs tell of it.
        """
        recipe = lasting({k: v for k, v in self.recipe.items() if k != "also"})
        if self.training != SOURCE:
            return recipe
        # Which layer is the classifier also matters to methods, where it was not found but named.
        named = recipe["model"]["selection"]["classifier"]
        told = {} if named is None else {"classifier": named}
        return {name: recipe[name] for name in LEARNED} | told


def _leaves(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings by their paths, such as recipe.erm.steps."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{above}{name}"
        found |= _leaves(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return found


def _short(words: str) -> str:
    """As they are, or their beginning and a digest where no file name could be as long."""
    return atomic.file_name(f"{words}{ROOM}").removesuffix(ROOM)


def _quoted(name: str) -> str:
    return quote(name, safe="")
