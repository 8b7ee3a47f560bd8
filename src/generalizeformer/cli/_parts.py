"""What a benchmark is asked for, and where it runs: the flags of `benchmark`, and the parts of a plan."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from generalizeformer.cli._data import Choice
from generalizeformer.cli._recipe import Augment, Division, Flags, given
from generalizeformer.cli._settings import overridden, settings_of_data
from generalizeformer.cli._terminal import Device
from generalizeformer.cli.evaluate import known_methods
from generalizeformer.cli.train import Apart, card_for
from generalizeformer.errors import UserError

if TYPE_CHECKING:
    from generalizeformer.benchmark.cells import Cell
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.training._recipe import Recipe

SuiteName = Literal[
    "main", "dynamic", "single-source", "output-shift", "several-targets", "ablations"
]
# Processes that work through several parts read one dataset once, and compute in one precision.
COMMON = ("data", "protocol", "data_settings", "image_size", "precision")


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is to be recorded.

    Args:
        suite: One or more, which then share the processes. main: every target left out once; dynamic: main's models,
            targets under looks that come alone, mixed and one after another; single-source: learned from one domain;
            output-shift: every source knows other classes; several-targets: one model meets targets alone, mixed and
            one after another; ablations: φ with one thing changed at a time.
        data: Dataset, one of `generalizeformer data list`; folder: your own images.
        protocol: Of the dataset, as for `train`.
        data_settings: Other settings of the dataset, such as drop_error=true for pacs.
        targets: Domains to leave out, one at a time; if none is named, all, or those that the dataset keeps for targets
            (where it does, no other can be one). Of several-targets: two or more to leave out together.
        sources: Of single-source: the domains to learn from, one at a time; if none is named, all that the dataset does
            not keep for targets. Of several-targets: those to learn from together; if none is named, all others that
            it does not keep.
        looks: Of dynamic: how targets look, such as rotation:30 fog:3 look:7; eight usual ones if none is named.
        classes_apart: Of output-shift: who knows which classes, as for `train`; labels if not given.
        seeds: One training per target and seed.
        trainings: source: the source models alone, which all methods but ours answer with; generalizeformer: our φ;
            generalizeformer_paper: the paper's φ on the same backbones; ablations have names of their own. If not
            given, all of the suite's, or those that the named methods answer with.
        methods: To be compared, or all; see `generalizeformer methods`. The suite's usual ones if not given. What was
            compared before stays in the tables, also where φ has other settings since.
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
        precision: Of the trainings; bf16-mixed is faster on recent GPUs.
    """

    suite: tuple[SuiteName, ...] = ("main",)
    data: str = "pacs"
    protocol: str | None = None
    data_settings: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    looks: tuple[str, ...] = ()
    classes_apart: Apart | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    trainings: tuple[str, ...] | None = None
    methods: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] | None = None
    limit: int | None = None
    selection_limit: int | None = None
    backbone: str | None = None
    pretrained: bool = False
    image_size: int | None = None
    division: Division | None = None
    augment: Augment | None = None
    source_steps: int | None = None
    steps: int | None = None
    settings: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[PATH [PATH ...]]")] = ()
    paper_settings: Annotated[str | None, tyro.conf.arg(metavar="{None}|PATH")] = None
    precision: Literal["32-true", "bf16-mixed"] = "32-true"

    def check(self) -> None:
        """Raises where a suite's own setting was given for another one."""
        from generalizeformer.benchmark.suites import check_options

        check_options(self.suite, self._own())

    def choice(self, root: Path | None) -> Choice:
        """The dataset."""
        return Choice(
            data=self.data,
            protocol=self.protocol,
            root=root,
            size=self.image_size,
            settings=settings_of_data(self.data_settings),
        )

    def cells(self, domains: "DomainDataset", divided: str | None) -> "dict[str, list[Cell]]":
        """The cells of every suite that is named. `divided`: the protocol that the domains are of."""
        from generalizeformer.benchmark.suites import cells

        named = tuple(known_methods(self.methods)) if self.methods else ()
        card = card_for(domains, self.backbone, self.image_size, divided, self.pretrained)
        same = ("targets", "seeds", "trainings", "batch_sizes", "limit", "selection_limit")
        shared: dict[str, Any] = {
            **{name: getattr(self, name) for name in (*same, "pretrained", "precision")},
            **{"methods": named, "backbone": card.architecture, "protocol": divided},
            "preprocessing": card.preprocessing,
            "dataset_settings": settings_of_data(self.data_settings),
        }
        asked = self._flags(named)
        return {
            suite: cells(suite, domains, self._recipes(suite, asked), **self._own(), **shared)
            for suite in dict.fromkeys(self.suite)
        }

    def _own(self) -> dict[str, Any]:
        """The settings that few suites have."""
        return {name: getattr(self, name) for name in ("sources", "looks", "classes_apart")}

    def _flags(self, methods: Sequence[str]) -> Flags:
        from generalizeformer.training._companions import trained_for

        asked = Flags(
            division=self.division,
            augment=self.augment,
            source_steps=self.source_steps,
            steps=self.steps,
            also=tuple(name for name in methods if name in trained_for()),
        )
        return asked.suited(self.choice(None))

    def _recipes(self, suite: SuiteName, asked: Flags) -> "dict[str, Recipe]":
        """The recipes of a suite's trainings, by name."""
        from generalizeformer.benchmark.suites import SUITES

        ours = replace(asked, episodes=SUITES[suite].episodes).recipe()
        for path in self.settings:
            ours = overridden(ours, Path(path))
        return SUITES[suite].recipes(ours, self._paper())

    def _paper(self) -> "Recipe":
        """The recipe of the paper's φ."""
        from generalizeformer.training._paper import PAPER_PHI

        recipe = replace(PAPER_PHI, meta=replace(PAPER_PHI.meta, **given(steps=self.steps)))
        path = self.paper_settings
        return recipe if path is None else overridden(recipe, Path(path))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where it runs.

    Args:
        root: Where the images are, as for `train`; your own ones want --data folder as well.
        device: Where to compute; auto takes a GPU if there is one.
        jobs: Cells at a time, each in a process of its own on the same device; a large GPU serves several.
        minutes: Stop after about so many, and tell what there is by then; no limit if not given. Run again, it goes on:
            trainings from their last validation, methods from their last record.
        again: Records of other commits that are to be replaced, by the names that they have in the tables; code that
            is not committed is all one commit. Trained models are not: for new ones, move the folder `models` away.
        only_tell: Make no record; tell what there is in tables, summaries and pages. It needs no images, but with
            --data folder, where they say what the domains are.
    """

    root: Path | None = None
    device: Device = "auto"
    jobs: int = 1
    minutes: float | None = None
    again: tuple[str, ...] = ()
    only_tell: bool = False

    def check(self) -> None:
        if self.jobs < 1:
            raise UserError(f"jobs: got {self.jobs}; it must be at least 1")
        if self.minutes is not None and not self.minutes > 0:
            raise UserError(f"minutes: got {self.minutes}; it must be more than 0")
        if self.again and self.only_tell:
            raise UserError(
                f"again: got {', '.join(self.again)}, but only_tell makes no records; leave one of both out"
            )


def check_common(parts: Mapping[str, Part]) -> Part:
    """One of the parts, for what all of a run share; raises where they do not, or one makes no sense."""
    for name, part in parts.items():
        with told_of(name):
            part.check()
    for field in COMMON:
        values = list(dict.fromkeys(getattr(part, field) for part in parts.values()))
        if len(values) > 1:
            words = ", ".join(map(repr, values))
            raise UserError(f"{field}: the parts have {words}; give all of them the same")
    return next(iter(parts.values()))


def check_again(names: Sequence[str], cells: "Sequence[Cell]", commit: str | None) -> None:
    """Raises where records are to be replaced that nobody makes, or that cannot be told from new ones."""
    from generalizeformer.benchmark.bench import tasks

    known = dict.fromkeys(task.name for cell in cells for task in tasks(cell)) if names else {}
    for name in names:
        if name not in known:
            raise UserError(
                f"again: no record here is of {name!r}; choose from: {', '.join(known)}"
            )
    if names and commit is None:
        raise UserError(
            "again: this code's commit is unknown, so old records cannot be told from new ones; name it in "
            "$GENERALIZEFORMER_COMMIT"
        )


@contextmanager
def told_of(part: str) -> Iterator[None]:
    """Errors inside say which part of a plan they are about, where it has a name."""
    try:
        yield
    except UserError as error:
        if not part:
            raise
        raise UserError(f"part {part!r}: {error}") from None
