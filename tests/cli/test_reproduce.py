"""`reproduce`: a plan in small, what it refuses, and that committed plans are those of their records."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from generalizeformer.benchmark import store
from generalizeformer.benchmark.cells import Cell
from generalizeformer.cli import benchmark as verb
from generalizeformer.cli._cells import check_rows, planned, recordable
from generalizeformer.cli._data import outlined
from generalizeformer.cli._parts import Part, check_common
from generalizeformer.cli.reproduce import read_plan
from generalizeformer.data.datasets import synthetic
from generalizeformer.errors import UserError

from .conftest import Command
from .test_benchmark import SETTINGS, Refused

RESULTS = Path(__file__).parents[2] / "results"
SHARED = {
    **{"data": "synthetic", "data_settings": ["domains=3", "per_class=5"], "targets": ["a", "c"]},
    **{"source_steps": 2, "steps": 2, "seeds": [0]},
    **{"batch_sizes": [3], "settings": ["settings.json"]},
}
PARTS: dict[str, dict[str, Any]] = {
    "main": {"trainings": ["source", "generalizeformer"], "methods": ["source"]},
    "others": {"methods": ["alpha_bn"]},
    "sizes": {"methods": ["source"], "batch_sizes": [5]},
    "looks": {
        **{"suite": ["dynamic"], "methods": ["source"]},
        **{"looks": ["rotation:90", "look:5"], "limit": 4},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS["settings"]))
    (tmp_path / "plan.json").write_text(json.dumps({"shared": SHARED, "parts": PARTS}))
    return tmp_path


def told(folder: Path, suite: str = "") -> dict[str, list[str]]:
    """The batch sizes that are recorded of every method."""
    methods = json.loads((folder / suite / "summary.json").read_text("utf-8"))["methods"]
    return {method: sorted(sizes) for method, sizes in methods.items()}


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_all_parts_are_recorded_and_those_of_one_model_lie_together(
    folder: Path, command: Command, jobs: str
) -> None:
    ended = command("reproduce", folder, "--device", "cpu", "--jobs", jobs)
    assert ended.status == 0, ended.err
    assert told(folder) == {"source": ["3", "5"], "generalizeformer": ["3"], "alpha_bn": ["3"]} | {
        "alpha_bn_oracle": ["3"]
    }
    assert told(folder, "dynamic") == {"source": ["3"]}
    # A file a target and training, whatever the part.
    assert len(list((folder / "cells").iterdir())) == 4
    assert len(list((folder / "models").iterdir())) == 4
    summaries = [line for line in ended.out.splitlines() if line.startswith("summary: ")]
    assert len(summaries) == 2  # a suite is told once


def test_parts_can_be_chosen_and_go_elsewhere(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, command: Command
) -> None:
    out = tmp_path_factory.mktemp("elsewhere")
    words = ("--parts", "others", "--out", out, "--device", "cpu")
    assert command("reproduce", folder, *words).status == 0
    assert told(out) == {"alpha_bn": ["3"], "alpha_bn_oracle": ["3"]}
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "settings.json"]
    # What other parts have recorded is told as well.
    assert command("reproduce", folder, *words[2:], "--parts", "sizes").status == 0
    assert told(out) == {"source": ["5"], "alpha_bn": ["3"], "alpha_bn_oracle": ["3"]}


def test_what_is_recorded_can_be_told_without_making_more(folder: Path, command: Command) -> None:
    asked = ("reproduce", folder, "--device", "cpu")
    assert command(*asked, "--parts", "others").status == 0
    before = (folder / "page.html").read_bytes()
    (folder / "page.html").unlink()
    (folder / "summary.json").unlink()
    ended = command(*asked, "--only-tell")
    assert ended.status == 0, ended.err
    assert told(folder) == {"alpha_bn": ["3"], "alpha_bn_oracle": ["3"]}
    assert (folder / "page.html").read_bytes() == before
    assert "dynamic: no records yet" in ended.out
    assert not (folder / "dynamic").exists()


def test_a_method_is_recorded_again_once_the_code_is_another(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("reproduce", folder, "--parts", "main", "--device", "cpu", "--again", "source")

    def commits() -> set[tuple[str, str]]:
        found = [json.loads(p.read_text("utf-8")) for p in (folder / "cells").iterdir()]
        return {(r["method"], r["commit"]) for cell in found for r in cell["records"]}

    monkeypatch.setenv("GENERALIZEFORMER_COMMIT", "first")
    command(*asked)
    monkeypatch.setenv("GENERALIZEFORMER_COMMIT", "second")
    assert "comparing" in command(*asked).err
    assert commits() == {("source", "second"), ("generalizeformer", "first")}
    assert "comparing" not in command(*asked).err  # that is done


def test_what_cannot_be_made_again_is_refused(
    folder: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("reproduce", folder, "--parts", "main", "--device", "cpu", "--again")
    message = "again: no record here is of 'sorce'; choose from: source, generalizeformer"
    assert refused(*asked, "sorce") == message
    monkeypatch.setattr(verb, "_commit", lambda: None)
    assert "again: this code's commit is unknown, so old" in refused(*asked, "source")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("{", "no readable JSON settings"),
        ('{"parts": {}}', "there are no parts; give {"),
        ('{"shared": {}}', "setting parts: Field required"),
        ('{"parts": {"x": {"sead": [1]}}}', "part 'x': there is no setting 'sead'; the"),
        ('{"parts": {"x": {"suite": ["man"]}}}', "part 'x': setting suite.0: Input should"),
        ('{"parts": {"x": {}}, "order": 1}', "there is no setting 'order'"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(
    folder: Path, refused: Refused, plan: str, message: str
) -> None:
    (folder / "plan.json").write_text(plan)
    line = refused("reproduce", folder)
    assert line.startswith(f"{folder / 'plan.json'}: ")
    assert message in line


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"looks": ["fog:3"]}, "part 'x': looks: got ('fog:3',), but the suite main takes none"),
        ({"targets": ["z"]}, "part 'x': synthetic: there is no domain 'z'"),
    ],
)
def test_what_cannot_run_is_told_with_its_part(
    folder: Path, refused: Refused, part: Any, message: str
) -> None:
    (folder / "plan.json").write_text(json.dumps({"shared": SHARED, "parts": {"x": part}}))
    assert message in refused("reproduce", folder)


def test_what_is_not_there_is_refused(folder: Path, refused: Refused) -> None:
    line = refused("reproduce", folder, "--parts", "main", "size")
    assert line.endswith("has no 'size'; choose from: main, others, sizes, looks")
    assert "it has no plan.json; give a folder with one" in refused("reproduce", folder / "nowhere")


def test_parts_of_one_run_share_their_data() -> None:
    with pytest.raises(UserError, match="image_size: the parts have None, 96; give all of them"):
        check_common({"one": Part(), "other": Part(image_size=96)})


@pytest.mark.parametrize(
    ("name", "least"), [("pacs", 238), ("pacs_small", 24), ("rotated_mnist", 9)]
)
def test_every_file_of_records_is_one_of_its_plan(name: str, least: int) -> None:
    folder = RESULTS / name
    parts = read_plan(folder)
    domains, divided = outlined(check_common(parts).choice(None))
    asked = planned(parts, domains, divided)
    told = recordable(parts, asked, domains, divided)
    check_rows(folder, asked, told)
    places = {store.place(folder, cell) for cells in told.values() for cell in cells}
    there = {*folder.glob("cells/*.json"), *folder.glob("*/cells/*.json")}
    assert there <= places
    assert len(there) >= least


def test_committed_records_are_told_without_their_images(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GENERALIZEFORMER_DATA", raising=False)
    folder = shutil.copytree(RESULTS / "rotated_mnist", tmp_path / "copy")
    made = folder / "several-targets"
    (made / "summary.json").unlink()
    ended = command("reproduce", folder, "--only-tell")
    assert ended.status == 0, ended.err
    before = RESULTS / "rotated_mnist" / "several-targets"
    assert (made / "summary.json").read_bytes() == (before / "summary.json").read_bytes()
    # Records cannot be made without them.
    asked = command("reproduce", folder)
    assert (asked.status, asked.out) == (2, "")
    assert "rotated_mnist: no root was given" in asked.err


def clash(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Cell]]:
    """The cells of two parts of a plan that may be told together, without any training."""
    plan = {"shared": SHARED, "parts": {"one": first, "two": second}}
    (folder / "plan.json").write_text(json.dumps(plan))
    parts, data = read_plan(folder), synthetic.build(synthetic.Config(domains=4, per_class=5))
    asked = planned(parts, data, None)
    check_rows(folder, asked, recordable(parts, asked, data, None))
    return asked


SEVERAL = {"suite": ["several-targets"], "settings": [], "methods": ["source"]}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"source_steps": 3}, "source of main, but they differ in recipe.erm.steps .2, 3.;"),
        ({}, {"source_steps": 3, "targets": ["b"]}, "recipe.erm.steps"),  # they would share a mean
        ({}, {"source_steps": 3, "seeds": [1]}, "recipe.erm.steps"),
        (
            {},
            {"steps": 3},
            "generalizeformer of main, but they differ in recipe.meta.steps .2, 3.;",
        ),
        ({"limit": 4}, {"methods": ["lame"]}, "differ in limit .4, None.; give both the same, or"),
        (SEVERAL, SEVERAL | {"targets": ["a", "d"]}, "targets .*'a', 'c'.*'a', 'd'"),
    ],
)
def test_parts_that_would_share_a_row_but_not_their_settings_are_refused(
    folder: Path, first: Any, second: Any, message: str
) -> None:
    with pytest.raises(UserError, match=f"^parts 'one' and 'two': both are told as .*{message}"):
        clash(folder, first, second)


def test_a_clash_is_refused_before_anything_runs(folder: Path, refused: Refused) -> None:
    parts = {"one": {}, "two": {"source_steps": 3}}
    (folder / "plan.json").write_text(json.dumps({"shared": SHARED, "parts": parts}))
    assert "recipe.erm.steps (2, 3)" in refused("reproduce", folder, "--parts", "two")
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "settings.json"]


@pytest.mark.parametrize(
    "second",
    [
        {"methods": ["lame", "itta"], "batch_sizes": [5], "seeds": [0, 1]},
        {"methods": ["lame"], "steps": 3},  # φ is another, but this part asks for none
        {"suite": ["single-source"], "source_steps": 3, "sources": ["b"]},
        {"targets": ["b"], "seeds": [1]},
    ],
)
def test_parts_that_share_no_row_or_all_settings_are_not_refused(folder: Path, second: Any) -> None:
    asked = clash(folder, {}, second)
    assert asked["one"]
    assert asked["two"]


def test_what_no_part_asks_for_is_refused_once_it_is_recorded(folder: Path) -> None:
    first, second = ({"methods": [name], "steps": n} for name, n in (("source", 2), ("lame", 3)))
    clash(folder, first, second)
    parts, data = read_plan(folder), synthetic.build(synthetic.Config(domains=4, per_class=5))
    told = recordable(parts, planned(parts, data, None), data, None)
    for cells in told.values():
        store.write(folder, store.Stored(cell=cells[1]))
    with pytest.raises(UserError, match="both are told as generalizeformer of main, but"):
        clash(folder, first, second)
