"""The reader's own images, from a tree of files to a table, with nothing to write but the command."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torchvision.io import write_png

from generalizeformer.cli.main import main
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.datasets import synthetic
from generalizeformer.imaging.files import read_images

QUICK = ["--image-size", "16", "--source-steps", "2", "--steps", "2", "--device", "cpu"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENERALIZEFORMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    toy = synthetic.build(synthetic.Config(domains=3, classes=3, per_class=8, size=20))
    for domain in toy.domains:
        for number, (image, label) in enumerate(zip(domain.images, domain.labels, strict=True)):
            path = tmp_path / "tree" / domain.name / f"kind {int(label)}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_png(image, str(path))
    return tmp_path / "tree"


def run(*words: object) -> None:
    main([str(word) for word in words])


def test_a_tree_of_images_becomes_a_model_and_a_table(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run("train", out, "--data", "folder", "--root", tree, "--leave-out", "b", *QUICK)
    card = GeneralizeFormer.from_pretrained(out).card
    assert card.sources == ("a", "c")
    assert card.classes == ("kind 0", "kind 1", "kind 2")
    assert card.architecture == "digits-small"
    run(
        "evaluate",
        out,
        "--root",
        tree,
        "--methods",
        "source",
        "generalizeformer",
        "--device",
        "cpu",
    )
    records = json.loads((out / "evaluation" / "records.json").read_text())
    assert {tuple(record["targets"]) for record in records} == {("b",)}
    assert {record["images"] for record in records} == {24}
    assert str(tree) not in (out / "config.json").read_text()  # a model says nothing of the machine
    assert "Accuracy on b" in capsys.readouterr().out


def test_images_that_have_a_root_are_ones_own(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("train", tmp_path / "run", "--root", tree, *QUICK)
    assert GeneralizeFormer.from_pretrained(tmp_path / "run").card.dataset == "folder"
    with pytest.raises(SystemExit):
        run("train", tmp_path / "other", "--root", tree, "--data", "digits", *QUICK)
    assert "but digits has no root; leave it out" in capsys.readouterr().err


def test_every_division_and_augmentation_trains(tree: Path, tmp_path: Path) -> None:
    for division, augment in (("domainbed", "authors"), ("seeded", "none")):
        out = tmp_path / division
        run("train", out, "--data", "folder", "--root", tree, *QUICK, "--division", division)
        run(
            "train",
            tmp_path / augment,
            "--data",
            "folder",
            "--root",
            tree,
            *QUICK,
            "--augment",
            augment,
        )
        assert (out / "model.safetensors").exists()


def test_classes_can_be_shared_out(tree: Path, tmp_path: Path) -> None:
    words = ["--data", "folder", "--root", tree, *QUICK, "--classes-apart"]
    run("train", tmp_path / "first", *words, "labels")
    run("train", tmp_path / "second", *words, "0")
    first, second = (
        torch.load(tmp_path / name / "training" / "erm.state", weights_only=True)["settings"][
            "domains"
        ]
        for name in ("first", "second")
    )
    assert first != second
    assert all("(8 images" in domain for domain in first)


@pytest.fixture
def trained(tree: Path, tmp_path: Path) -> Path:
    run("train", tmp_path / "run", "--data", "folder", "--root", tree, "--leave-out", "b", *QUICK)
    return tmp_path / "run"


def scores(folder: Path) -> list[tuple[str, float]]:
    return [(r["stream"], r["accuracy"]) for r in json.loads((folder / "records.json").read_text())]


def test_a_stored_stream_is_replayed(trained: Path, tree: Path, tmp_path: Path) -> None:
    words = ("evaluate", trained, "--root", tree, "--methods", "source", "--device", "cpu", "--out")
    run(*words, tmp_path / "first", "--targets", "b@fog:5", "c", "--order", "dirichlet", "--limit", 9,
        "--order-settings", "minimum=1", "--batch-sizes", 4)  # fmt: skip
    stored = sorted((tmp_path / "first" / "streams").iterdir())
    assert len(stored) == 3
    for again in (stored, [tmp_path / "first" / "streams"]):
        run(*words, tmp_path / "second", "--replay", *again)
        assert sorted(scores(tmp_path / "first")) == sorted(scores(tmp_path / "second"))


@pytest.mark.parametrize(("scenario", "count"), [("gradual_rotation", 2), ("recurring", 1)])
def test_scenarios_are_for_every_target_or_all_together(
    scenario: str, count: int, trained: Path, tree: Path
) -> None:
    run("evaluate", trained, "--root", tree, "--methods", "source", "--device", "cpu", "--targets", "b",
        "c", "--batch-sizes", 5, "--limit", 10, "--scenario", scenario)  # fmt: skip
    records = json.loads((trained / "evaluation" / "records.json").read_text())
    assert len(records) == count
    assert {record["images"] for record in records} == {10}


def test_targets_with_fewer_classes_are_scored_by_the_names_of_their_classes(
    trained: Path, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "evaluate",
        trained,
        "--methods",
        "source",
        "--no-mixed",
        "--device",
        "cpu",
        "--batch-sizes",
        8,
    )
    run(*words, "--root", tree, "--out", tmp_path / "all", "--targets", "b")
    few = tmp_path / "few"
    shutil.copytree(tree / "b" / "kind 2", few / "b" / "kind 2")
    run(*words, "--root", few, "--out", tmp_path / "one", "--targets", "b")
    model = GeneralizeFormer.from_pretrained(trained)
    pictures = read_images(sorted((few / "b" / "kind 2").iterdir()), 3, 16)
    right = (
        (model.backbone.eval()(model.card.preprocessing(pictures)).argmax(1) == 2).float().mean()
    )
    assert scores(tmp_path / "one")[0][1] == pytest.approx(100 * right.item())
    (few / "b" / "kind 2").rename(few / "b" / "unheard of")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(*words, "--root", few, "--targets", "b")
    assert "it has the class 'unheard of', but the model tells" in capsys.readouterr().err


def test_a_domain_may_be_named_like_a_target_under_a_change(tree: Path, tmp_path: Path) -> None:
    (tree / "b").rename(tree / "a@fog:3")
    out = tmp_path / "run"
    run("train", out, "--data", "folder", "--root", tree, "--leave-out", "a@fog:3", *QUICK)
    for words, images in ((["a@fog:3"], 24), (["a@fog:3@snow:1"], 24)):
        run(
            "evaluate",
            out,
            "--root",
            tree,
            "--methods",
            "source",
            "--device",
            "cpu",
            "--targets",
            *words,
        )
        records = json.loads((out / "evaluation" / "records.json").read_text())
        assert {record["images"] for record in records} == {images}


def test_settings_of_a_dataset_are_kept_with_the_model(tmp_path: Path) -> None:
    out, words = tmp_path / "run", ("--source-steps", 1, "--steps", 1, "--device", "cpu")
    run("train", out, "--data", "synthetic", "--data-settings", "per_class=4", "domains=3", *words)
    assert GeneralizeFormer.from_pretrained(out).card.dataset_settings == {
        "per_class": "4",
        "domains": "3",
    }
    run("evaluate", out, "--targets", "a", "--methods", "source", "--device", "cpu")
    records = json.loads((out / "evaluation" / "records.json").read_text())
    assert {record["images"] for record in records} == {20}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "folder"], "folder: "),
        (["--data", "folder", "--root", "nowhere"], "nowhere: no such folder or file"),
        (
            ["--data", "digits", "--root", "x"],
            "root: got 'x', but digits has no root; leave it out",
        ),
        (["--data", "pacs"], "`generalizeformer data info pacs` says how to get the files"),
        (["--sources", "15", "30", "--leave-out", "45"], "sources and leave out were both given"),
        (["--division", "official"], "digits came without official lists"),
        (
            ["--data", "synthetic", "--leave-out", *"abcd"],
            "leave out: no domain is left to learn from",
        ),
        (
            ["--data-settings", "colour"],
            "data settings: got 'colour'; give name=value, such as drop_error=true",
        ),
        (
            ["--data-settings", "angles=[1,"],
            "data settings: angles is '[1,', no readable list (Expecting value",
        ),
        (
            ["--data-settings", "colour=red"],
            "digits: there is no setting 'colour'; the settings are: ",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("GENERALIZEFORMER_DATA", raising=False)
    with pytest.raises(SystemExit) as stopped:
        run("train", tmp_path / "run", *words)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
