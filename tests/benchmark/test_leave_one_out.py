"""A whole leave-one-domain-out benchmark in small: what is trained, who sees what, and going on after a stop."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from generalizeformer.benchmark import bench, leave_one_out, selection, store
from generalizeformer.benchmark.comparisons import COMPARISONS
from generalizeformer.benchmark.images import Shown, differences
from generalizeformer.benchmark.leave_one_out import finish
from generalizeformer.benchmark.records import Record, Refusal
from generalizeformer.benchmark.selection import grid
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.splits import split_all
from generalizeformer.data.streams import Stream
from generalizeformer.errors import CheckpointError, DataError
from generalizeformer.training._start import fingerprint

from . import toys
from .lab import MAIN, cells, domains, fabric

BOTH = ("generalizeformer", "generalizeformer_paper")
ALL = ("source", *BOTH)
METHODS = ["source", "mirror", "alpha_bn", "t3a", "tent", "alpha_bn_oracle"]


class Seen:
    """What was run: the data, and the bits of the backbone it was run with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.selection: list[Any] = []
        self.target: list[Any] = []
        self.backbones: dict[str, set[str]] = {}
        for module, seen in ((selection, self.selection), (bench, self.target)):
            monkeypatch.setattr(module, "run", self.watched(module.run, seen))

    def watched(self, run: Any, seen: list[Any]) -> Any:
        def watching(model: Any, data: Any, method: str, *given: Any) -> Record:
            seen.append((data, method, *given))
            made: Record = run(model, data, method, *given)
            bits = fingerprint(model.backbone.state_dict())
            self.backbones.setdefault("+".join(model.card.sources), set()).add(bits)
            return made

        return watching


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two targets in all trainings, and what was seen meanwhile."""
    folder, patch = tmp_path_factory.mktemp("benchmark"), pytest.MonkeyPatch()
    seen, all_cells = Seen(patch), cells(targets=("a", "b"), trainings=ALL, batch_sizes=(4, 3))
    records = {cell.name: finish(cell, domains(), folder, fabric()) for cell in all_cells}
    patch.undo()
    return folder, all_cells, records, seen


def without_time(records: Any) -> list[Record]:
    return [replace(record, seconds=0.0) for record in records]


def test_every_method_meets_the_whole_target_in_every_batch_size(made: Any) -> None:
    _, all_cells, records, _ = made
    for cell in all_cells:
        named = METHODS if cell.training == "source" else [cell.training]
        mine = records[cell.name]
        assert [(r.batch_size, r.method) for r in mine] == [(s, m) for s in (3, 4) for m in named]
        for record in mine:
            assert (record.targets, record.images) == ((cell.target,), 15)
            assert record.stream == Stream((cell.target,), record.batch_size, cell.seed).key()
            others = {"a", "b", "c"} - {cell.target}
            assert record.sources_before.keys() == record.sources_after.keys() == others


def test_the_selector_never_meets_the_target(made: Any) -> None:
    _, _, _, seen = made
    searched = {method for _, method, *_ in seen.selection}
    assert searched == {"alpha_bn", "tent", "t3a"}
    assert {data.names for data, *_ in seen.selection} == {("b", "c"), ("a", "c")}


def test_settings_are_chosen_on_the_validation_images_of_the_recipe(made: Any) -> None:
    _, _, _, seen = made
    for data, *_ in seen.selection:
        sources = domains().only(data.names)
        _, held = split_all(sources, validation=MAIN.validation, seed=0, division=MAIN.division)
        for name in data.names:
            assert torch.equal(data[name].images, held[name].images)


def test_what_was_chosen_is_what_ran(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, (cell, *_), _, _ = made
    last = {"alpha_bn": grid("alpha_bn")[-1], "tent": grid("tent")[-1], "t3a": grid("t3a")[-1]}

    def choose(model: Any, held: Any, method: str, size: int, seed: int, limit: Any) -> Any:
        return last[method]

    monkeypatch.setattr(bench, "choose", choose)
    other = replace(cell, selection_limit=7, batch_sizes=(4,))  # nothing of it is stored
    copy = store.place(folder, cell).read_bytes()
    records = finish(other, domains(), folder, fabric())
    store.place(folder, cell).write_bytes(copy)
    for record in records:
        if record.method in last:
            settings = last[record.method]
            assert {name: record.settings[name] for name in settings} == settings


def test_all_methods_of_a_target_start_from_the_same_bits_in_all_trainings(made: Any) -> None:
    _, _, _, seen = made
    assert seen.backbones.keys() == {"b+c", "a+c"}
    assert all(len(bits) == 1 for bits in seen.backbones.values())
    assert seen.backbones["b+c"] != seen.backbones["a+c"]


def test_records_tell_the_bits_they_were_made_with(made: Any) -> None:
    _, all_cells, records, seen = made
    for cell in all_cells:
        told = {record.source for record in records[cell.name]}
        assert told == seen.backbones["b+c" if cell.target == "a" else "a+c"]


def test_methods_are_not_added_to_records_of_another_source_model(
    made: Any, tmp_path: Path
) -> None:
    _, (cell, *_), records, _ = made
    strange = tuple(replace(r, source="0123456789ab") for r in records[cell.name])
    store.write(tmp_path, store.Stored(cell=cell, records=strange))
    with pytest.raises(CheckpointError, match="another source model \\(0123456789ab\\)"):
        finish(replace(cell, methods=("lame",)), domains(), tmp_path, fabric())
    assert store.read(tmp_path, cell).records == strange


def test_the_plain_model_is_the_same_for_the_papers_generator(made: Any) -> None:
    _, _, records, _ = made
    ours, paper = records["a-seed-0-generalizeformer"], records["a-seed-0-generalizeformer_paper"]
    before = {r.batch_size: r.sources_before for r in ours}
    assert {r.batch_size: r.sources_before for r in paper} == before


def test_the_oracle_is_the_best_entry_of_the_grid_and_named_so(made: Any) -> None:
    _, _, records, seen = made
    mine = records["a-seed-0-source"]
    oracles = [record for record in mine if record.is_oracle]
    assert [record.method for record in oracles] == ["alpha_bn_oracle"] * 2
    for oracle in oracles:
        honest = [r for r in mine if (r.method, r.stream) == ("alpha_bn", oracle.stream)]
        assert oracle.accuracy >= honest[0].accuracy
    tried = [g[2]["alpha_bn"] for d, m, *g in seen.target if m == "alpha_bn" and d.names == ("a",)]
    for entry in grid("alpha_bn"):
        assert tried.count(entry) >= 2  # in both batch sizes


def test_every_training_has_a_comparison() -> None:
    assert tuple(COMPARISONS["main"]) == ALL


def test_a_finished_cell_is_not_run_again(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, all_cells, records, _ = made
    monkeypatch.setattr(leave_one_out, "train_recipe", None)
    for cell in all_cells:
        assert finish(cell, domains(), folder, fabric()) == records[cell.name]


def test_a_cell_with_another_limit_is_run_again_on_the_same_model(made: Any) -> None:
    folder, (cell, *_), _, _ = made
    models = sorted(path.name for path in (folder / "models").iterdir())
    stages: list[str] = []
    changed = replace(cell, target="a", limit=3, batch_sizes=(3,))
    copy = store.place(folder, cell).read_bytes()
    records = finish(changed, domains(), folder, fabric(), lambda name, *_: stages.append(name))
    assert {record.images for record in records} == {3}
    assert set(stages) == {"comparing"}
    assert sorted(path.name for path in (folder / "models").iterdir()) == models
    store.place(folder, cell).write_bytes(copy)


class Stopped(BaseException):
    """As sudden as a kill, as far as a test can be."""


def stop_in_training(stage: str, done: int, *_: Any) -> None:
    if (stage, done) == ("meta", 1):
        raise Stopped


def stop_in_comparing(stage: str, done: int, *_: Any) -> None:
    if (stage, done) == ("comparing", 1):
        raise Stopped


@pytest.mark.parametrize("stop", [stop_in_training, stop_in_comparing])
def test_stopped_inside_a_cell_and_started_again_the_records_are_the_same(
    made: Any, tmp_path: Path, stop: Any
) -> None:
    _, (_, cell, *_), records, _ = made
    with pytest.raises(Stopped):
        finish(cell, domains(), tmp_path, fabric(), stop)
    kept = store.read(tmp_path, cell).records
    assert len(kept) == (1 if stop is stop_in_comparing else 0)
    again = finish(cell, domains(), tmp_path, fabric())
    assert without_time(again) == without_time(records[cell.name])


def test_stopped_between_cells_and_started_again_the_records_are_the_same(
    made: Any, tmp_path: Path
) -> None:
    _, (first, second, *_), records, _ = made
    finish(first, domains(), tmp_path, fabric())
    stored = store.place(tmp_path, first).read_bytes()
    for cell in (first, second):
        again = finish(cell, domains(), tmp_path, fabric())
        assert without_time(again) == without_time(records[cell.name])
    assert store.place(tmp_path, first).read_bytes() == stored
    assert len(list((tmp_path / "backbones").iterdir())) == 3  # of b and c, of b, of c


def test_a_failed_method_leaves_the_records_before_it(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (cell, *_), records, _ = made
    run, calls = bench.run, []

    def failing(*given: Any) -> Record:
        calls.append(given)
        if len(calls) == 3:
            raise OSError("the disk is full")
        return run(*given)

    monkeypatch.setattr(bench, "run", failing)
    with pytest.raises(OSError, match="the disk is full"):
        finish(cell, domains(), tmp_path, fabric())
    assert [record.method for record in store.read(tmp_path, cell).records] == [
        "source",
        "mirror",
    ]
    again = finish(cell, domains(), tmp_path, fabric())
    assert without_time(again) == without_time(records[cell.name])


def test_more_methods_and_batch_sizes_are_added_to_what_is_there(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (cell, *_), records, _ = made
    less = replace(cell, batch_sizes=cell.batch_sizes[:1])
    finish(less, domains(), tmp_path, fabric())
    before = store.read(tmp_path, less).records
    asked, run = [], bench.run

    def noting(model: Any, target: Any, method: str, *given: Any) -> Record:
        asked.append(method)
        return run(model, target, method, *given)

    monkeypatch.setattr(bench, "run", noting)
    more = replace(cell, methods=("lame", "source"))
    got = finish(more, domains(), tmp_path, fabric())
    assert store.read(tmp_path, more).records[: len(before)] == before
    assert {r.method for r in got} == {r.method for r in records[cell.name]} | {"lame"}
    assert asked.count("source") == len(cell.batch_sizes) - 1
    assert not {"t3a", "tent"} & set(asked)


def test_two_processes_that_add_to_one_file_lose_nothing_of_each_other(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (cell, *_), _, _ = made
    one, other = (
        replace(cell, batch_sizes=(4,), methods=methods)
        for methods in (("source", "lame"), ("tent",))
    )
    answer = bench.Bench.answer

    def interrupted(self: Any, task: Any) -> Any:
        """Another process, or as good as one, compares its method while this one is at work."""
        made = answer(self, task)
        if task.name == "lame":
            finish(other, domains(), tmp_path, fabric())
        return made

    monkeypatch.setattr(bench.Bench, "answer", interrupted)
    finish(one, domains(), tmp_path, fabric())
    stored = store.read(tmp_path, cell)
    assert {record.method for record in stored.records} == {"source", "lame", "tent"}


def test_time_adds_up_over_answers_and_tries(tmp_path: Path) -> None:
    (cell,) = cells(trainings=("source",))
    first, second = toys.record(), toys.record(method="tent")
    store.add(tmp_path, cell, first, 2.0)
    store.add(tmp_path, cell, second, 3.0)
    expected = store.Stored(cell=cell, records=(first, second), seconds=5.0)
    assert store.read(tmp_path, cell) == expected


def refused(method: str, commit: str | None) -> Refusal:
    return Refusal(method=method, targets=("a",), setting="", why="no", commit=commit)


def test_refusals_stay_until_the_method_is_asked_again_whoever_adds_what(tmp_path: Path) -> None:
    (cell,) = cells(trainings=("source",))
    old, new = refused("x", "old"), refused("y", "new")
    for answer in (old, new, new, toys.record(commit="newer")):
        store.add(tmp_path, cell, answer, 1.0)
    stored = store.read(tmp_path, cell)
    assert stored.refusals == (old, new)
    # What this very code was refused need not be asked again.
    assert {method for method, _ in stored.done("old")} == {"source", "x"}
    assert {method for method, _ in stored.done("newer")} == {"source"}
    store.add(tmp_path, cell, toys.record(method="y"), 1.0)
    store.add(tmp_path, cell, refused("x", "newer"), 1.0)
    assert store.read(tmp_path, cell).refusals == (refused("x", "newer"),)


def test_a_commit_that_an_older_file_has_for_all_is_that_of_its_refusals(tmp_path: Path) -> None:
    (cell,) = cells(trainings=("source",))
    store.write(tmp_path, store.Stored(cell=cell, refusals=(refused("x", None),)))
    path = store.place(tmp_path, cell)
    content = json.loads(path.read_text("utf-8"))
    del content["refusals"][0]["commit"]
    path.write_text(json.dumps(content | {"commit": "old"}), "utf-8")
    stored = store.read(tmp_path, cell)
    assert stored.refusals == (refused("x", "old"),)
    assert (stored.done("old"), stored.done("new")) == ({("x", "")}, set())
    store.add(tmp_path, cell, toys.record(commit="new"), 1.0)
    assert store.read(tmp_path, cell).refusals == (refused("x", "old"),)


def changed(name: str) -> DomainDataset:
    """The usual domains, one of them with another image."""
    data = domains()
    images = data[name].images.clone()
    images[0] = 255 - images[0]
    return data.replaced(
        Domain(d.name, images, d.labels) if d.name == name else d for d in data.domains
    )


@pytest.mark.parametrize("name", ["a", "b"])  # the target, and a domain that is learned from
def test_records_of_other_images_under_the_same_names_are_refused(
    made: Any, tmp_path: Path, name: str
) -> None:
    _, (cell, *_), _, _ = made
    few = replace(cell, batch_sizes=(4,), methods=("source",))
    records = finish(few, domains(), tmp_path, fabric())
    assert finish(few, domains(), tmp_path, fabric()) == records
    before = store.place(tmp_path, few).read_bytes()
    for asked in (few, replace(few, methods=("lame",))):
        with pytest.raises(
            DataError, match=f"other images than those given now, of which {name} has other pixels;"
        ):
            finish(asked, changed(name), tmp_path, fabric())
    with pytest.raises(DataError, match="of which d was not there;"):
        finish(few, domains(4), tmp_path, fabric())
    assert store.place(tmp_path, few).read_bytes() == before


def test_a_file_that_does_not_know_its_images_is_taken_as_it_is_and_learns_of_none(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (cell, *_), records, _ = made
    older = store.Stored(cell=cell, records=records[cell.name])
    store.write(tmp_path, older)
    monkeypatch.setattr(store, "shown", None)  # nor are images looked at for nothing
    assert finish(cell, changed("a"), tmp_path, fabric()) == older.records
    store.add(tmp_path, cell, toys.record(method="lame"), 1.0, (seen("a"),))
    assert store.read(tmp_path, cell).images == ()


def seen(name: str, **changes: Any) -> Shown:
    return Shown(**({"name": name, "count": 9, "labels": "x", "mean": 100.0} | changes))


def test_another_process_with_other_images_adds_nothing(tmp_path: Path) -> None:
    (cell,) = cells(trainings=("source",))
    store.add(tmp_path, cell, toys.record(), 1.0, (seen("a"), seen("b")))
    other = (seen("b", labels="y"), seen("a", count=8))
    with pytest.raises(DataError, match="which a has 8 images, not 9, b has other labels;"):
        store.add(tmp_path, cell, toys.record(), 1.0, other)
    assert store.read(tmp_path, cell).seconds == 1.0


def test_images_that_were_decoded_by_another_processor_are_the_same() -> None:
    """Of a million pixels, some are one off."""
    images = torch.full((4, 1, 500, 500), 100, dtype=torch.uint8)
    other = images.clone()
    other[:, :, 0, 0] += 1
    labels = torch.zeros(4, dtype=torch.long)
    one, two = (Shown.of(Domain("a", pixels, labels)) for pixels in (images, other))
    assert one != two
    assert differences([one], [two]) == []
    third = Shown.of(Domain("a", images + 1, labels))
    assert differences([one], [third]) == ["a has other pixels"]
    assert differences([one], []) == ["a is missing"]


def test_a_method_that_refuses_is_told_and_not_asked_again(made: Any, tmp_path: Path) -> None:
    _, (cell, *_), _, _ = made
    alone = replace(cell, batch_sizes=(1,), methods=("source", "tent_bn"), limit=2)
    got = finish(alone, domains(), tmp_path, fabric(), commit="abc")
    assert {(r.commit, r.device) for r in got} == {("abc", "cpu")}
    assert "tent_bn" not in {record.method for record in got}
    (refusal,) = store.read(tmp_path, alone).refusals
    assert refusal.method == "tent_bn"
    assert "at least 2 images" in refusal.why
    stages: list[str] = []
    tell = lambda name, *_: stages.append(name)  # noqa: E731
    finish(alone, domains(), tmp_path, fabric(), tell, commit="abc")
    assert not stages
    finish(alone, domains(), tmp_path, fabric(), tell, commit="other code")
    assert stages == ["comparing"]
    assert len(store.read(tmp_path, alone).refusals) == 1


def test_methods_need_the_source_model_alone(made: Any, tmp_path: Path) -> None:
    _, (cell, *_), records, _ = made
    trained: list[str] = []
    told = finish(cell, domains(), tmp_path, fabric(), lambda stage, *_: trained.append(stage))
    assert {*trained} == {"erm-b+c", "comparing"}
    assert without_time(told) == without_time(records[cell.name])
    assert not list(tmp_path.glob("models/*/config.json"))  # half a model is none


def test_records_of_methods_outlive_a_change_of_phi(made: Any) -> None:
    folder, (cell, ours, _, *_), records, _ = made
    other = {"recipe": cell.recipe | {"stay": 0.5, "calibration": 7}}
    assert finish(replace(cell, **other), domains(), folder, fabric()) == records[cell.name]
    assert store.read(folder, replace(ours, **other)).records == ()


@pytest.mark.parametrize(("there", "new"), [(0, 1), (1, 0), (1, 2)])
def test_no_training_is_compared_with_records_of_another_source_model(
    made: Any, tmp_path: Path, there: int, new: int
) -> None:
    _, all_cells, records, _ = made
    strange = tuple(replace(r, source="0123456789ab") for r in records[all_cells[there].name])
    store.write(tmp_path, store.Stored(cell=all_cells[there], records=strange))
    with pytest.raises(CheckpointError, match="another source model \\(0123456789ab\\)"):
        finish(all_cells[new], domains(), tmp_path, fabric())
    assert store.read(tmp_path, all_cells[new]).records == ()
