"""The reader's own images, from a tree of files to a table, with nothing to write but the command."""

import json
from pathlib import Path

import pytest
import torch
from torchvision.io import write_png

from generalizeformer.cli.main import main
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.datasets import synthetic

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
