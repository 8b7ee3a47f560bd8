"""Cells of all suites, run in small: which records come, and which models are trained for them."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.leave_one_out import finish
from generalizeformer.benchmark.records import Record
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.training._recipe import Recipe

from .lab import MAIN, domains, fabric
from .test_suites import LOOKED, planned

SHARED = ["source", "mirror", "alpha_bn", "t3a", "tent"]
VARIANTS = (
    "source",
    "generalizeformer",
    "generalizeformer_norms_only",
    "generalizeformer_without_shift",
)


class Run:
    """A folder in which cells are finished, and the stages that each took."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stages: dict[str, set[str]] = defaultdict(set)

    def records(self, cell: Cell) -> tuple[Record, ...]:
        def report(stage: str, *_: Any) -> None:
            self.stages[f"{cell.suite} {cell.name}"].add(stage)

        return finish(cell, domains(), self.folder, fabric(), report)


@pytest.fixture(scope="module")
def main(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose main models are there."""
    run = Run(tmp_path_factory.mktemp("suites"))
    for cell in planned("main", targets=("a",), batch_sizes=(5,))[:2]:
        run.records(cell)
    return run


def test_a_changing_target_is_met_by_the_main_model(main: Run) -> None:
    given = {"looks": ("rotation:90", "look:5"), "limit": 6, "batch_sizes": (4,)}
    cell, ours, paper, alike = planned("dynamic", targets=("a",), **given)
    assert paper.training == "generalizeformer_paper"
    assert alike.training == "generalizeformer_without_telling_apart"
    assert alike.recipe["model"]["generator"]["variation"] == 0
    assert alike.recipe["model"]["kin"] is None
    records = main.records(cell)
    assert main.stages[f"dynamic {cell.name}"] == {"comparing"}
    assert [r.method for r in records] == SHARED * 4
    assert [r.images for r in records[:: len(SHARED)]] == [6, 6, 12, 12]
    assert not any(r.sources_after for r in records)
    assert [r.method for r in main.records(ours)] == ["generalizeformer"] * 4
    assert main.stages[f"dynamic {ours.name}"] == {"comparing"}
    # The source model answers images one by one, so that nothing is lost, bit for bit.
    alone, other, mixed, changing = (r for r in records if r.method == "source")
    assert mixed.by_target == changing.by_target == alone.by_target | other.by_target


def test_ablations_are_trained_on_the_main_backbones(main: Run) -> None:
    made = planned("ablations", targets=("a",), trainings=VARIANTS, batch_sizes=(5,))
    found = {cell.training: main.records(cell) for cell in made}
    methods = {name: [r.method for r in records] for name, records in found.items()}
    assert methods == {name: [name] for name in VARIANTS}
    stages = [main.stages[f"ablations {cell.name}"] for cell in made]
    assert stages == [{"comparing"}, {"comparing"}, *[{"meta", "comparing"}] * 2]
    before = [r.sources_before for records in found.values() for r in records]
    assert all(one == before[0] for one in before)


def test_several_targets_are_met_by_one_model(tmp_path: Path) -> None:
    run = Run(tmp_path)
    cell, ours, paper = planned("several-targets", batch_sizes=(5,), limit=6)
    records = run.records(cell)
    # alone, alone, mixed, changing
    assert [r.method for r in records] == [*SHARED, "alpha_bn_oracle"] * 4
    assert [r.images for r in records[:: len(SHARED) + 1]] == [6, 6, 12, 12]
    assert {tuple(r.sources_after) for r in records} == {("c",)}
    for cell in (ours, paper):
        assert [r.method for r in run.records(cell)] == [cell.training] * 4
    assert len(list((tmp_path / "backbones").iterdir())) == 1


def test_a_model_of_one_source_is_trained_once_for_all_its_targets(tmp_path: Path) -> None:
    run, made = (
        Run(tmp_path),
        planned("single-source", sources=("b",), batch_sizes=(5,), trainings=("generalizeformer",)),
    )
    for cell in made:
        (record, *_) = run.records(cell)
        assert record.targets == (cell.target,)
        assert record.sources_after.keys() == {"b"}
    first, second = run.stages.values()
    assert {"meta", "comparing"} < first
    assert second == {"comparing"}
    assert len(list((tmp_path / "models").iterdir())) == 1
    assert len(list((tmp_path / "backbones").iterdir())) == 1


def test_the_paper_s_phi_learns_from_one_source_as_it_is(tmp_path: Path) -> None:
    given = {"sources": ("b",), "targets": ("a",), "batch_sizes": (5,)}
    (cell,) = planned("single-source", trainings=("generalizeformer_paper",), **given)
    (record,) = Run(tmp_path).records(cell)
    assert record.method == "generalizeformer_paper"
    assert len(list((tmp_path / "backbones").iterdir())) == 1


def test_classes_apart_are_trained_and_compared_as_one_source(tmp_path: Path) -> None:
    cell, *_ = planned("output-shift", targets=("a",), batch_sizes=(5,))
    records = Run(tmp_path).records(cell)
    assert [r.method for r in records] == [*SHARED, "alpha_bn_oracle"]
    assert {tuple(r.sources_after) for r in records} == {("b+c",)}
    assert {r.images for r in records} == {15}
    assert len(list((tmp_path / "backbones").iterdir())) == 1


@pytest.mark.parametrize(("main", "told"), [(MAIN, "1"), (LOOKED, None)])
def test_a_model_of_separate_sources_tells_how_classes_were_shared_out(
    tmp_path: Path, main: Recipe, told: str | None
) -> None:
    given = {"targets": ("a",), "batch_sizes": (5,), "classes_apart": "1"}
    (cell,) = planned("output-shift", main, trainings=("generalizeformer",), **given)
    Run(tmp_path).records(cell)
    model = GeneralizeFormer.from_pretrained(tmp_path / "models" / cell.model_name)
    assert model.card.classes_apart == told  # pooled, there is one source that knows them all


def test_classes_apart_are_met_by_a_backbone_that_is_trained_already(tmp_path: Path) -> None:
    main = replace(LOOKED, erm=None)
    for cell in planned("output-shift", main, targets=("a",), batch_sizes=(5,))[:2]:
        assert cell.pooled
        assert cell.recipe["erm"] is None
        assert {tuple(r.sources_after) for r in Run(tmp_path).records(cell)} == {("b+c",)}
    assert not (tmp_path / "backbones").exists()
