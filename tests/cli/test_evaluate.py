"""What `evaluate` measures, who takes part, and how those who cannot are told."""

import html
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.text import Text

from generalizeformer import catalog
from generalizeformer.benchmark import selection
from generalizeformer.benchmark.method_pages import short_table
from generalizeformer.benchmark.records import read
from generalizeformer.cli import _terminal
from generalizeformer.cli._data import learned_from
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer

from .conftest import Command

ONE = ("--batch-sizes", "20", "--limit", "40", "--device", "cpu")


def test_all_measures_are_shown_and_kept(command: Command, trained: Path, tmp_path: Path) -> None:
    words = ("--methods", "source", "tent", *ONE, "--out", tmp_path)
    ended = command("evaluate", trained, *words)
    assert ended.status == 0, ended.err
    shown = " ".join(ended.out.replace("┃", " ").split())
    assert "All measures: single, batches of 20" in shown
    for head in ("accuracy,", "calibration", "forwards", "backwards", "classes,"):
        assert head in shown
    assert "peak MiB" not in shown  # nobody knows it of a CPU
    plain, tent = read(tmp_path / "records.json")
    assert (plain.forwards, plain.backwards) == (1, 0)
    assert (tent.forwards, tent.backwards) == (1, 1)
    assert plain.by_class.keys() <= set(GeneralizeFormer.from_pretrained(trained).card.classes)
    assert plain.calibration_error is not None
    assert json.loads((tmp_path / "refused.json").read_text()) == []


def test_who_cannot_serve_a_batch_size_is_a_row_that_says_why(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    words = ("--methods", "source", "tent_bn", "--batch-sizes", "1", "20", "--limit", "40")
    ended = command("evaluate", trained, *words, "--out", tmp_path, "--device", "cpu")
    assert ended.status == 0, ended.err
    ran = [(r.method, r.batch_size) for r in read(tmp_path / "records.json")]
    assert ran == [("source", 1), ("source", 20), ("tent_bn", 20)]
    (row,) = [line for line in ended.out.splitlines() if "give at least 2 images" in line]
    assert row.startswith("│ tent_bn │")
    assert "single, batches of 1" in row
    (refused,) = json.loads((tmp_path / "refused.json").read_text())
    assert (refused["method"], refused["setting"]) == ("tent_bn", "single, batches of 1")
    assert refused["why"] in html.unescape((tmp_path / "page.html").read_text("utf-8"))


def test_where_nobody_can_take_part_the_reason_is_the_error(
    refused: Callable[..., str], trained: Path, tmp_path: Path
) -> None:
    words = ("--methods", "tent_bn", "--batch-sizes", "1", "--out", tmp_path / "new")
    assert "give at least 2 images per batch" in refused("evaluate", trained, *words)
    assert not (tmp_path / "new").exists()


def test_earlier_records_are_told_to_be_replaced(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    words = ("evaluate", trained, "--methods", "source", *ONE, "--out", tmp_path)
    line = f"records: {tmp_path / 'records.json'}"
    assert line in command(*words).out.splitlines()
    assert f"{line} (in the place of earlier ones)" in command(*words).out.splitlines()


def test_targets_that_were_learned_from_are_told(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    words = ("evaluate", trained, "--methods", "source", *ONE, "--out", tmp_path, "--targets")
    ended = command(*words, "d", "b@fog:5", "a")
    told = "the model has learned from images of b, a: accuracies there say little of"
    assert f"note: {told}" in ended.err
    assert told in (tmp_path / "page.html").read_text("utf-8")
    assert "learned from" not in command(*words, "d").err
    assert told not in (tmp_path / "page.html").read_text("utf-8")


def test_images_that_are_never_learned_from_are_not_told_to_be_known() -> None:
    card = Card(classes=("0", "1"), dataset="digits", sources=("15",))
    assert not learned_from(card, ["15"], ["0", "15"])


# --sources


def test_sources_are_those_the_training_validated_on(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    words = ("--methods", "source", "tent", "--sources", *ONE, "--out", tmp_path)
    ended = command("evaluate", trained, *words)
    assert ended.status == 0, ended.err
    assert "sources" in ended.out
    card = GeneralizeFormer.from_pretrained(trained).card
    for record in read(tmp_path / "records.json"):
        assert tuple(record.sources_before) == tuple(record.sources_after) == card.sources
        # The same images that the training measured, or this would be another number.
        mean = sum(record.sources_before.values()) / len(record.sources_before)
        assert mean == pytest.approx(card.source_accuracy)


def test_without_the_flag_sources_are_left_alone(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    command("evaluate", trained, "--methods", "source", *ONE, "--out", tmp_path)
    (record,) = read(tmp_path / "records.json")
    assert record.sources_before == record.sources_after == {}


def test_a_model_without_its_training_cannot_tell_its_validation_images(
    refused: Callable[..., str], trained: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(trained, moved, ignore=shutil.ignore_patterns("training"))
    said = refused("evaluate", moved, "--methods", "source", "--sources", *ONE)
    assert said == (
        f"source images: {moved} has no training folder, so nobody knows which it was only validated on; evaluate "
        "where it was trained, or leave out --sources and --choose"
    )
    assert refused("evaluate", moved, "--methods", "tent", "--choose", "2", *ONE) == said


def test_other_images_than_those_learned_from_are_refused(
    refused: Callable[..., str], trained: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    state = torch.load(other / "training" / "meta.state", weights_only=True)
    state["settings"]["domains"][1] = "b (7 images, 0123456789ab)"
    torch.save(state, other / "training" / "meta.state")
    said = refused("evaluate", other, "--methods", "source", "--sources", *ONE)
    assert said.startswith(f"source images: {other} has learned from a (")
    assert "b (7 images, 0123456789ab)" in said
    assert said.endswith("give the same images (--root), or leave out --sources and --choose")


@pytest.mark.parametrize("order", ["labels", "2"])
def test_sources_that_know_other_classes_are_found_again(
    command: Command, tmp_path: Path, order: str
) -> None:
    words = (
        "--data synthetic --sources c a b --episodes looks --source-steps 2 --steps 2 --device cpu"
    )
    run = tmp_path / "run"
    trained = command("train", run, *words.split(), "--classes-apart", order)
    assert trained.status == 0, trained.err
    words = "--methods source t3a --sources --choose 3"
    ended = command("evaluate", run, *words.split(), *ONE)
    assert ended.status == 0, ended.err
    card = GeneralizeFormer.from_pretrained(run).card
    assert card.classes_apart == order
    assert f"every class in one of them only (order: {order})" in (run / "README.md").read_text()
    for record in read(run / "evaluation" / "records.json"):
        before = record.sources_before
        assert tuple(before) == card.sources == ("c", "a", "b")
        assert sum(before.values()) / 3 == pytest.approx(card.source_accuracy)


def test_settings_are_chosen_on_the_sources_where_asked(
    command: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def choose(model: Any, held: Any, method: str, *given: Any) -> dict[str, Any]:
        asked.append((held.names, method, *given))
        return selection.grid(method)[-1]

    monkeypatch.setattr(selection, "choose", choose)
    own = tmp_path / "own.json"
    own.write_text('{"t3a": {"supports": 3}}')
    words = ("--methods", "source", "tent", "t3a", "--choose", "7", "--settings", own, *ONE)
    ended = command("evaluate", trained, *words, "--out", tmp_path)
    assert ended.status == 0, ended.err
    card = GeneralizeFormer.from_pretrained(trained).card
    size = read(tmp_path / "records.json")[0].batch_size
    assert asked == [(card.sources, "tent", size, card.seed, 7)]
    used = {record.method: record.settings for record in read(tmp_path / "records.json")}
    assert used["tent"].items() >= selection.grid("tent")[-1].items()
    assert used["t3a"]["supports"] == 3
    assert not read(tmp_path / "records.json")[0].sources_before


def test_no_images_to_choose_on_are_refused(refused: Callable[..., str], trained: Path) -> None:
    assert "choose: got 0; give the number" in refused("evaluate", trained, "--choose", "0", *ONE)


# methods


def test_methods_are_listed_and_written_as_the_page(command: Command, tmp_path: Path) -> None:
    ended = command("methods")
    assert ended.status == 0
    rows = [line.split("│")[1].strip() for line in ended.out.splitlines() if line.startswith("│")]
    assert rows == catalog.names("generalizeformer.adapters")
    page = tmp_path / "new" / "methods.md"
    ended = command("methods", "--markdown", page)
    assert ended == (0, f"page: {page}\n", "")
    assert page.read_text("utf-8").startswith("# Test-time methods\n")


def test_in_a_terminal_the_list_of_methods_is_as_wide_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = io.StringIO()
    narrow = Console(file=text, force_terminal=True, width=80, markup=False)
    monkeypatch.setattr(_terminal, "console", narrow)
    _terminal.show_words(short_table())
    lines = [Text.from_ansi(line).plain for line in text.getvalue().splitlines()]
    assert max(map(len, lines)) == 80
    assert [line for line in lines if line.startswith("│ generalizeformer ")]
