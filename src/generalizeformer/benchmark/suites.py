"""Suites: the benchmarks by name. How each is planned, with which methods, and what is told of its records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from generalizeformer.benchmark import ablations, dynamic, several_targets, single_source, ways
from generalizeformer.benchmark.cells import SOURCE, Cell
from generalizeformer.benchmark.comparisons import LOOKED
from generalizeformer.benchmark.pages import ABOUT_BENCHMARK, benchmark_sections
from generalizeformer.benchmark.plans import Task, from_each, left_out, plan, recipes, several
from generalizeformer.benchmark.records import Record
from generalizeformer.benchmark.report import Section
from generalizeformer.benchmark.summary import summary
from generalizeformer.benchmark.tables import Table, accuracy_table
from generalizeformer.benchmark.variants import variants_of, varied
from generalizeformer.data.domains import DomainDataset
from generalizeformer.errors import UserError
from generalizeformer.training._recipe import Recipe

OURS = "generalizeformer"
"""Our method, and the training that makes its usual φ."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A benchmark. Its methods are in `comparisons`, by the same name."""

    title: str  # of the table, after the name of the data
    heading: str  # of the page, before it
    about: str
    batch_sizes: tuple[int, ...] = (20,)
    episodes: Literal["looks"] | None = None  # where the usual ones make no sense
    options: tuple[str, ...] = ()  # settings that few suites have
    tasks: Callable[[DomainDataset, Sequence[str], Sequence[str]], list[Task]] = left_out
    recipes: Callable[[Recipe, Recipe], dict[str, Recipe]] = recipes
    tables: Callable[[Sequence[Record], str], list[Table]]
    sections: Callable[[Sequence[Record]], list[Section]] = benchmark_sections
    summary: Callable[[Sequence[Record]], dict[str, Any]] = summary


def _accuracy(records: Sequence[Record], title: str) -> list[Table]:
    return [accuracy_table(records, title)]


SUITES: Mapping[str, Suite] = {
    "main": Suite(
        title="every target left out once: accuracy, %",
        heading="Leave one domain out",
        about=ABOUT_BENCHMARK,
        batch_sizes=(20, 64, 128, 1),  # what takes longest comes last
        tables=_accuracy,
    ),
    "dynamic": Suite(
        title="looks alone, mixed and changing: accuracy, %",
        heading="Targets that change",
        about="Each target is left out once and then met under several looks: turned, in other colours, corrupted. "
        "All methods of a target start from the same source model, that of the main benchmark. "
        "Where our φ tells mixed batches apart, it has measured how source images vary under random looks, of the kind "
        "that most of these are; no other method here has seen any.",
        options=("looks",),
        recipes=lambda main, paper: recipes(main, paper) | variants_of(main, LOOKED),
        tables=ways.tables,
        sections=dynamic.sections,
        summary=dynamic.summary,
    ),
    "single-source": Suite(
        title="learned from one domain: accuracy, %",
        heading="Learn from one domain",
        about="Models learn from one domain, our φ from random looks of it, and then meet every other target. All "
        "methods of a source start from the same source model.",
        episodes="looks",
        options=("sources",),
        tasks=from_each,
        tables=single_source.tables,
        sections=single_source.sections,
        summary=single_source.summary,
    ),
    "output-shift": Suite(
        title="every source knows other classes: accuracy, %",
        heading="Sources that know other classes",
        about="Each target is left out once. Every class is in one of the domains to learn from only; the target has "
        "all classes. All methods of a target start from the same source model.",
        episodes="looks",
        options=("classes_apart",),
        tables=_accuracy,
    ),
    "several-targets": Suite(
        title="targets alone, mixed and in turn: accuracy, %",
        heading="Several targets",
        about="One model meets several targets: each alone, all of them mixed inside batches, and one after another. "
        "All methods start from the same source model.",
        options=("sources",),
        tasks=several,
        tables=ways.tables,
        sections=several_targets.sections,
        summary=several_targets.summary,
    ),
    "ablations": Suite(
        title="one thing changed at a time: accuracy, %",
        heading="Ablations",
        about="Each target is left out once. All variants of a target start from the same source models.",
        batch_sizes=(20, 1),
        recipes=lambda main, paper: recipes(main, paper) | varied(main),
        tables=ablations.tables,
        sections=ablations.sections,
        summary=ablations.summary,
    ),
}


def check_options(names: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raises where no suite was named, or a setting was given that is another suite's."""
    if not names:
        raise UserError(f"suite: none was named; choose from: {', '.join(SUITES)}")
    for option, value in given.items():
        if value and not any(option in SUITES[name].options for name in names):
            owners = [other for other, suite in SUITES.items() if option in suite.options]
            words, chosen = option.replace("_", " "), ", ".join(names)
            raise UserError(
                f"{words}: got {value!r}, but the suite {chosen} takes none; leave it out, or choose --suite "
                f"{' or '.join(owners)}"
            )


def cells(
    name: str,
    domains: DomainDataset,
    known: Mapping[str, Recipe],
    *,
    targets: Sequence[str] = (),
    sources: Sequence[str] = (),
    looks: Sequence[str] = (),
    classes_apart: str | None = None,
    trainings: Sequence[str] | None = None,
    batch_sizes: Sequence[int] | None = None,
    **shared: Any,
) -> list[Cell]:
    """The cells of a suite; where a setting is not given, its usual one."""
    suite = SUITES[name]
    if "looks" in suite.options:
        shared["looks"] = tuple(looks or dynamic.LOOKS)
    if "classes_apart" in suite.options:
        shared["classes_apart"] = classes_apart or "labels"
        # A model that never saw a domain never saw its classes: held-out episodes need the domains apart.
        shared["pooled"] = known[OURS].episodes == "looks"
    methods = tuple(shared.pop("methods", ()))
    asked = _needed(tuple(known), methods) if trainings is None else _asked(trainings, methods)
    return plan(
        domains,
        known,
        suite.tasks(domains, targets, sources),
        trainings=asked,
        methods=_others(methods),
        batch_sizes=suite.batch_sizes if batch_sizes is None else tuple(batch_sizes),
        suite=name,
        **shared,
    )


def _others(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods that are compared on the source model: ours has trainings of its own."""
    return tuple(name for name in methods if name != OURS)


def _needed(known: Sequence[str], methods: Sequence[str]) -> tuple[str, ...]:
    """The trainings that these methods answer with; all of them where none is named."""
    others, ours = bool(_others(methods)), OURS in methods
    return tuple(name for name in known if not methods or (others if name == SOURCE else ours))


def _asked(trainings: Sequence[str], methods: Sequence[str]) -> tuple[str, ...]:
    """The trainings that were named, among which must be those that the methods answer with."""
    others, named = _others(methods), ", ".join(trainings)
    if trainings and others and SOURCE not in trainings:
        raise UserError(
            f"methods: got {', '.join(others)}, but they are compared on the model of {SOURCE}, which is not among "
            f"the trainings ({named}); add it, or leave the methods out"
        )
    if trainings and OURS in methods and not set(trainings) - {SOURCE}:
        raise UserError(
            f"methods: got {OURS}, which answers with a φ, but none is among the trainings ({named}); add {OURS} "
            "there, or leave it out here"
        )
    return tuple(name for name in trainings if name != SOURCE or others or not methods)
