"""What each verb does when all is well."""

import csv
import io
import json
import os
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from generalizeformer.benchmark.records import read
from generalizeformer.catalog import names
from generalizeformer.cli._recipe import Flags
from generalizeformer.cli._settings import overridden
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import channels, rows
from generalizeformer.imaging.files import read_images
from generalizeformer.training import _run
from generalizeformer.training._paper import PAPER_RECIPE
from generalizeformer.training._recipe import Recipe

from .conftest import Command

TINY = ("--data", "synthetic", "--source-steps", "2", "--steps", "2", "--device", "cpu")


# train


def test_training_says_how_well_it_went_and_where_the_model_is(
    command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "a [run]"
    ended = command("train", out, *TINY, "--held-out", "a")
    assert ended.status == 0
    both = r"\d+\.\d % plain, \d+\.\d % generated"
    unseen = f"domains that the backbone had not learned from: {both}"
    found = re.fullmatch(rf"source validation: {both}; {unseen}; saved in (.*)\n", ended.out)
    assert found
    assert found[1] == str(out)
    lines = ended.err.splitlines()  # no terminal: lines in the place of bars
    assert lines[0] == "training digits-small from random weights on a, b, c, d (cpu)"
    words = [re.sub(r"\d+\.\d", "x", line) for line in lines[1:]]
    assert words == [
        f"{stage}: 2 of 2, validation x %" for stage in ("erm", "erm-without-a", "meta")
    ]
    card = GeneralizeFormer.from_pretrained(out).card
    assert (card.dataset, card.sources) == ("synthetic", ("a", "b", "c", "d"))
    again = command("train", out, *TINY, "--held-out", "a")
    assert again == (0, ended.out, "")  # nothing left to do


def test_training_that_did_harm_says_so_beside_the_answer(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_run, "mean_accuracies", lambda *_: (50.0, 43.8))
    ended = command("train", tmp_path / "run", *TINY, "--episodes", "looks")
    assert ended.out.startswith("source validation: 50.0 % plain, 43.8 % generated; saved in")
    assert "warning: generated parameters are 6.2 points worse" in ended.err.splitlines()[-1]


def test_another_setting_in_the_same_folder_is_refused(command: Command, tmp_path: Path) -> None:
    words = ("train", tmp_path / "run", *TINY, "--held-out", "a")
    command(*words)
    ended = command(*words, "--learning-rate", "0.1")
    assert ended.status == 2
    assert "meta.state: belongs to a run with meta.learning_rate 0.003, not 0.1; go" in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--episodes", "joint"),
        ("--episodes", "looks", "--sources", "b"),
        ("--episodes", "joint", "--looks"),
        ("--episodes", "looks", "--looks", "--loss", "memo"),
        ("--episodes", "joint", "--backbone", "timm:test_vit", "--image-size", "160"),
    ],
)
def test_training_in_other_ways(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"meta": {"images": 4, "sizes": [2]}, "erm": {"per_domain": 2}}')
    ended = command("train", tmp_path / "run", *TINY, *words, "--settings", settings)
    assert ended.status == 0, ended.err
    model = GeneralizeFormer.from_pretrained(tmp_path / "run")
    assert model.card.training == f"{words[1]} episodes, 2 steps"


def test_settings_in_a_file_override_the_flags(command: Command, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"meta": {"steps": 3}, "model": {"generator": {"width": 16}}}')
    command("train", tmp_path / "run", *TINY, "--held-out", "a", "--settings", settings)
    model = GeneralizeFormer.from_pretrained(tmp_path / "run")
    assert model.card.training == "held-out episodes, 3 steps"
    assert model.config.generator.width == 16


def test_a_phi_of_another_kind_in_a_file_takes_the_place_of_the_usual_one(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"model": {"generator": {"kind": "rows", "layers": 2}, "kin": null}}')
    made = overridden(Recipe(), settings).model
    assert made == replace(Recipe().model, generator=rows.Config(layers=2), kin=None)
    settings.write_text('{"model": {"generator": {"kind": "channels", "width": 16}}}')
    assert overridden(Recipe(), settings).model.generator == channels.Config(width=16)


def asked(**changes: Any) -> Recipe:
    nothing: dict[str, Any] = dict.fromkeys(f.name for f in fields(Flags))
    return Flags(
        **(
            nothing
            | {"paper": False, "looks": False, "held_out": (), "also": (), "seed": 0}
            | changes
        )
    ).recipe()


def test_the_papers_recipe_gives_way_to_flags_only() -> None:
    assert asked(paper=True) == PAPER_RECIPE
    changed = asked(paper=True, steps=2, learning_rate=0.5, seed=3, episodes="held-out")
    expected = replace(PAPER_RECIPE.meta, steps=2, learning_rate=0.5)
    assert changed == replace(PAPER_RECIPE, episodes="held-out", meta=expected, seed=3)


def test_without_flags_the_recipe_is_the_demos_in_small() -> None:
    recipe = asked()
    assert recipe.erm is not None
    assert (recipe.episodes, recipe.model) == ("held-out", Recipe().model)
    assert (recipe.erm.steps, recipe.meta.steps) == (300, 400)
    assert (recipe.erm.learning_rate, recipe.meta.learning_rate) == (3e-3, 3e-3)
    assert asked(looks=True).meta.looks is not None


def test_the_paper_can_be_followed_by_name(command: Command, tmp_path: Path) -> None:
    words = ("--paper", "--generator", "channels", "--steps", "2", "--device", "cpu")
    ended = command("train", tmp_path / "run", "--data", "synthetic", *words)
    assert ended.status == 0, ended.err
    model = GeneralizeFormer.from_pretrained(tmp_path / "run")
    assert model.card.training == "joint episodes, 2 steps"


# evaluate


def test_an_evaluation_is_of_the_protocol_and_seed_of_the_training(
    command: Command, tmp_path: Path
) -> None:
    tiny = ("--source-steps", "1", "--steps", "1", "--held-out", "0", "--device", "cpu")
    run = tmp_path / "run"
    words = ("--protocol", "inner", "--sources", "0", "90", "--seed", "3")
    assert command("train", run, *words, *tiny).status == 0
    command("evaluate", run, "--methods", "source", "--limit", "20", "--batch-sizes", "20")
    records = read(run / "evaluation" / "records.json")
    assert {r.targets for r in records} == {("30",), ("45",), ("60",), ("30", "45", "60")}
    assert {r.run_seed for r in records} == {3}


def test_lists_are_settings_of_a_dataset_too(command: Command, tmp_path: Path) -> None:
    tiny = ("--source-steps", "1", "--steps", "1", "--held-out", "20", "--device", "cpu")
    run = tmp_path / "run"
    angles = ("source_angles=[20,70]", "target_angles=[5]")
    ended = command("train", run, "--data-settings", *angles, *tiny)
    assert ended.status == 0, ended.err
    assert GeneralizeFormer.from_pretrained(run).card.sources == ("20", "70")
    command("evaluate", run, "--methods", "source", "--limit", "20", "--batch-sizes", "20")
    (record,) = read(run / "evaluation" / "records.json")
    assert record.targets == ("5",)


def test_methods_run_with_the_settings_of_a_file(
    command: Command, trained: Path, pictures: Path, tmp_path: Path
) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"tent": {"steps": 2}, "generalizeformer": {"guard": {"limit": 0.0}}}')
    command("evaluate", trained, "--out", tmp_path, "--settings", path, "--batch-sizes", "20")
    used = {record.method: record.settings for record in read(tmp_path / "records.json")}
    assert used["tent"]["steps"] == 2
    assert used["generalizeformer"]["guard"]["limit"] == 0.0
    # A guard that lets nothing pass answers like the source.
    words = ("predict", trained, pictures)
    guarded = json.loads(command(*words, "--settings", path).out)
    plain = json.loads(command(*words, "--method", "source").out)
    assert [a["probability"] for a in guarded] == [a["probability"] for a in plain]


def test_an_evaluation_shows_a_table_and_leaves_records_and_a_page(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    ended = command("evaluate", trained, "--out", tmp_path, "--targets", "c", "d", "--limit", "30")
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert lines[0].strip() == "Accuracy on c, d, %"
    for method in ("source", "alpha_bn", "tent", "t3a", "generalizeformer"):
        assert any(line.startswith(f"│ {method} ") for line in lines)
    assert max(len(line) for line in lines[:10]) <= 80
    assert f"records: {tmp_path / 'records.json'}" in lines
    assert f"page: {tmp_path / 'page.html'}" in lines
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")
    settings = {(r.targets, r.batch_size) for r in read(tmp_path / "records.json")}
    assert settings == {
        (("c",), 1),
        (("d",), 1),
        (("c",), 20),
        (("d",), 20),
        (("c", "d"), 20),
    }


def test_by_default_the_targets_are_what_was_not_learned(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    command("evaluate", trained, "--out", tmp_path, "--methods", "source")
    assert {r.targets for r in read(tmp_path / "records.json")} == {("d",)}


def test_targets_under_a_change_arrive_in_the_order_asked_for(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    words = ("d", "d@fog:5", "c@rotation:30", "d")
    ended = command(
        *("evaluate", trained, "--out", tmp_path, "--methods", "source", "--targets", *words),
        *("--order", "in_turn", "--no-single"),
    )
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[0].strip() == "Accuracy on d, d@fog:5, c@rotation:30, %"
    (record,) = read(tmp_path / "records.json")
    assert (record.targets, record.order, record.images) == (words, "in_turn", 240)
    assert list(record.by_target) == ["d", "d@fog:5", "c@rotation:30"]
    assert "in_turn, 4 targets, batches of 20" in " ".join(ended.out.replace("┃", " ").split())


def test_an_order_has_settings(command: Command, trained: Path, tmp_path: Path) -> None:
    command(
        *("evaluate", trained, "--out", tmp_path, "--methods", "source", "--order", "dirichlet"),
        *("--order-settings", "minimum=2", "shuffle_inside=True", "--batch-sizes", "20"),
    )
    (record,) = read(tmp_path / "records.json")
    assert record.order_settings == {"beta": 0.1, "minimum": 2, "shuffle_inside": True}


def test_all_means_every_method(command: Command, trained: Path, tmp_path: Path) -> None:
    command("evaluate", trained, "--out", tmp_path, "--methods", "all", "--batch-sizes", "20")
    ran = [record.method for record in read(tmp_path / "records.json")]
    trained_for = names("generalizeformer.core.companions")  # which this model was not
    assert ran == [m for m in names("generalizeformer.adapters") if m not in trained_for]
    told = json.loads((tmp_path / "refused.json").read_text())
    assert [refusal["method"] for refusal in told] == trained_for


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_is_whole_at_every_width(
    command: Command, trained: Path, tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = ("--batch-sizes", "1", "4", "16", "--methods", "generalizeformer", "--limit", "16")
    ended = command("evaluate", trained, "--out", tmp_path, "--targets", "a", "d", *words)
    assert "│ generalizeformer │" in ended.out
    assert "…" not in ended.out
    assert all(word in ended.out for word in ("single,", "mixed,", "batches", "16", "image"))


def test_without_matplotlib_the_answer_is_there_all_the_same(
    command: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = command("evaluate", trained, "--out", tmp_path, "--methods", "source")
    assert ended.status == 0
    assert "no page: plots need matplotlib; pip install 'generalizeformer[report]'" in ended.out
    assert len(read(tmp_path / "records.json")) == 2
    assert not (tmp_path / "page.html").exists()


# predict


def test_predictions_are_the_models_answers(
    command: Command, trained: Path, pictures: Path
) -> None:
    words = ("--batch-size", "2", "--in-order", "--device", "cpu")
    ended = command("predict", trained, pictures, *words)
    assert (ended.status, ended.err) == (0, "")
    answers = json.loads(ended.out)
    files = [pictures / name for name in ("a.png", "b.png", "c.jpg", "d.webp", "deep/e.png")]
    assert [answer["file"] for answer in answers] == [str(file) for file in files]
    assert [answer["batch"] for answer in answers] == [0, 0, 1, 1, 2]

    model = GeneralizeFormer.from_pretrained(trained)
    pixels = model.card.preprocessing(read_images(files, 3, 16))
    with torch.no_grad():
        sure, best = model(pixels, torch.arange(5) // 2).softmax(1).max(1)
    assert [answer["class"] for answer in answers] == [model.card.classes[k] for k in best.tolist()]
    assert [a["probability"] for a in answers] == pytest.approx(sure.tolist(), abs=1e-4)


def test_batches_are_drawn_and_answers_keep_the_order_of_the_files(
    command: Command, trained: Path, pictures: Path
) -> None:
    """Alike in every call. A file may be named more than once."""
    files = sorted(pictures.glob("*.*")) * 3
    words = ("predict", trained, *files, "--batch-size", "4")
    answers = json.loads(command(*words).out)
    assert [answer["file"] for answer in answers] == [str(file) for file in files]
    batches = [answer["batch"] for answer in answers]
    assert sorted(batches) == [0] * 4 + [1] * 4 + [2] * 4
    assert batches != sorted(batches)
    assert json.loads(command(*words).out) == answers
    mine = [file for file, batch in zip(files, batches, strict=True) if batch == 1]
    alone = json.loads(command("predict", trained, *mine, "--in-order").out)
    told = [a["probability"] for a in answers if a["batch"] == 1]
    assert [a["probability"] for a in alone] == pytest.approx(told, abs=1e-4)


def test_files_may_be_named_one_by_one_and_answers_be_csv(
    command: Command, trained: Path, pictures: Path
) -> None:
    files = [pictures / "d.webp", pictures / "a.png"]
    words = ("--format", "csv", "--method", "source", "--batch-size", "1", "--in-order")
    ended = command("predict", trained, *files, *words)
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert [row["batch"] for row in rows] == ["0", "1"]
    assert set(rows[0]) == {"file", "class", "probability", "batch"}


@pytest.mark.parametrize("to_file", [False, True])
def test_names_that_are_no_utf_8_have_escapes_in_answers(
    command: Command, trained: Path, pictures: Path, tmp_path: Path, to_file: bool
) -> None:
    file = (pictures / "a.png").rename(pictures / os.fsdecode(b"\xe9.png"))
    out = tmp_path / "answers"
    where = ("--out", out) if to_file else ()
    ended = command("predict", trained, file, "--format", "csv", *where)
    assert ended.status == 0, ended.err
    (row,) = csv.DictReader(io.StringIO(out.read_text("utf-8") if to_file else ended.out))
    assert row["file"] == str(pictures / "\\xe9.png")
    assert json.loads(command("predict", trained, file).out)[0]["file"] == str(file)


def test_files_that_are_no_images_are_named_and_left_out_where_that_is_wanted(
    command: Command, trained: Path, pictures: Path
) -> None:
    """Also where nothing of a batch is left."""
    words = ("predict", trained, "--batch-size", "2", "--in-order", "--skip-unreadable")
    good = [pictures / name for name in ("a.png", "c.jpg", "d.webp")]
    bad = [pictures / name for name in ("1.png", "2.png", "3.png")]
    for file in bad:
        file.write_text("not a picture")
    ended = command(*words, good[0], bad[0], *bad[1:], *good[1:])
    answers = json.loads(ended.out)
    assert [(a["file"], a["batch"]) for a in answers] == [
        (str(good[0]), 0),
        (str(good[1]), 2),
        (str(good[2]), 2),
    ]
    assert all(f"left out: {file}: not an image" in ended.err for file in bad)
    assert "left out, as above: 3 of 6 files" in ended.err
    alone = json.loads(command(*words, good[0]).out)
    assert alone[0]["probability"] == answers[0]["probability"]


@pytest.mark.parametrize("format", ["json", "csv"])
def test_answers_in_a_file_are_those_on_the_screen(
    command: Command, trained: Path, pictures: Path, tmp_path: Path, format: str
) -> None:
    words = ("predict", trained, pictures, "--format", format)
    shown = command(*words).out
    out = tmp_path / "new" / f"answers.{format}"
    ended = command(*words, "--out", out)
    assert (ended.status, ended.out) == (0, "")
    assert "".join(ended.err.split()) == "".join(f"5 answers in {out}".split())
    assert out.read_text("utf-8") == shown


def test_colour_pictures_suit_a_model_of_grey_ones(
    command: Command, pictures: Path, tmp_path: Path
) -> None:
    tiny = ("--source-steps", "1", "--steps", "1", "--held-out", "15", "--device", "cpu")
    command("train", tmp_path / "digits", "--sources", "15", "75", *tiny)
    ended = command("predict", tmp_path / "digits", pictures)
    assert ended.status == 0, ended.err
    assert len(json.loads(ended.out)) == 5


# info


def test_info_lists_the_slots_of_a_backbone(command: Command) -> None:
    ended = command("info", "digits-small", "--classes", "10", "--channels", "1")
    assert ended.status == 0
    assert "blocks.3.1" in ended.out
    assert "5 slots, 922 of 29,866 parameters; classifier: classifier" in ended.out


def test_info_lists_only_what_is_asked_for(command: Command) -> None:
    words = ("--kinds", "norm", "--stages", "blocks.0", "blocks.1")
    ended = command("info", "digits-small", *words)
    assert "2 slots, 80 of" in ended.out


def test_info_tells_of_a_trained_model(command: Command, trained: Path) -> None:
    ended = command("info", trained)
    assert "backbone: digits-small, 5 classes\n" in ended.out
    assert "training: held-out episodes, 4 steps, on synthetic: a, b, c\n" in ended.out
    assert "φ: " in ended.out
    assert "5 slots" in ended.out


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ((), "training: untrained, on unknown\n"),
        (("a", "b"), "training: untrained, on unknown: a, b\n"),
    ],
)
def test_info_tells_of_a_model_without_a_named_dataset(
    command: Command, trained: Path, tmp_path: Path, sources: tuple[str, ...], expected: str
) -> None:
    model = GeneralizeFormer.from_pretrained(trained)
    model.card = replace(model.card, training="untrained", dataset=None, sources=sources)
    model.save_pretrained(tmp_path / "model")
    assert expected in command("info", tmp_path / "model").out


def test_info_tells_what_unseen_domains_gained_where_it_is_known(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    model = GeneralizeFormer.from_pretrained(trained)
    line = "\ndomains that the backbone had not learned from: "
    for plain, adapted in ((60.0, 66.04), (None, None)):
        model.card = replace(model.card, unseen_accuracy=plain, unseen_adapted_accuracy=adapted)
        model.save_pretrained(tmp_path / "model")
        told = command("info", tmp_path / "model").out
        assert (f"{line}60.0 % plain, 66.0 % generated\n" in told) == (plain is not None)
        assert (line in told) == (plain is not None)


def test_info_lists_what_a_trained_model_generates_unless_asked_for_more(
    command: Command, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"model": {"selection": {"kinds": ["norm"], "exclude": ["blocks.0"]}}}')
    run = tmp_path / "run"
    command("train", run, *TINY, "--held-out", "a", "--settings", settings)
    assert "\n3 slots" in command("info", run).out
    assert "\n4 slots" in command("info", run, "--kinds", "norm", "classifier").out
    assert "\n1 slots" in command("info", run, "--stages", "blocks.1").out


# demo


def test_the_demo_shows_a_table_and_leaves_a_page(command: Command, tmp_path: Path) -> None:
    ended = command("demo", "--out", tmp_path, "--steps", "2", "--limit", "40", "--seeds", "0")
    assert ended.status == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0] == "seed 0: training on digits turned by 15 to 75 degrees"
    assert any(line.startswith("│ generalizeformer │") for line in lines)
    assert re.fullmatch(r"\d+ s; the page is (.*)", lines[-1])
    assert lines[-1].endswith(str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.count("<svg") == 4
    assert len(read(tmp_path / "records.json")) == 25


def test_the_demo_needs_seeds_and_plots_before_it_starts(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = command("demo", "--out", tmp_path / "x", "--seeds")
    assert (ended.status, ended.err) == (
        2,
        "error: seeds: none was given; give at least one, such as 0\n",
    )
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = command("demo", "--out", tmp_path / "x")
    assert ended.status == 2
    assert ended.err == "error: plots need matplotlib; pip install 'generalizeformer[report]'\n"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"augment": "domainbed"}, "all"),
        ({"augment": "digits"}, "no"),
        ({"augment": "none"}, "no"),
        ({}, "no"),
        ({"augment": "domainbed", "paper": True}, "no"),
    ],
)
def test_mirror_images_are_asked_about_where_they_were_learned_from(
    flags: dict[str, Any], expected: str
) -> None:
    assert asked(**flags).decided().model.mirrored == expected


@pytest.mark.parametrize(
    ("flags", "changes", "expected"),
    [
        ({"augment": "none"}, {"erm": {"augmentation": {"flip_chance": 0.5}}}, "all"),
        ({"augment": "domainbed"}, {"erm": {"augmentation": None}}, "no"),
        ({"augment": "domainbed"}, {"erm": None}, "no"),
        ({"augment": "domainbed"}, {"model": {"mirrored": "group"}}, "group"),
        ({"paper": True}, {"erm": {"augmentation": {"flip_chance": 0.5}}}, "no"),
    ],
)
def test_settings_decide_about_mirror_images_as_flags_do(
    flags: dict[str, Any], changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    """What follows from a setting must not be fixed before settings are laid over it."""
    (path := tmp_path / "settings.json").write_text(json.dumps(changes))
    assert overridden(asked(**flags), path).decided().model.mirrored == expected
