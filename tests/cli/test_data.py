"""`generalizeformer data …`, on small trees and a small dataset."""

import functools
import importlib
import inspect
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.progress import Progress

from generalizeformer import catalog
from generalizeformer.cli import _terminal, data
from generalizeformer.cli._terminal import console
from generalizeformer.data.datasets import DATASETS, _files
from generalizeformer.data.storage import trees
from generalizeformer.data.storage.published import Defect, Published

from .conftest import Command

Refused = Callable[..., str]

PUBLISHED = Published(
    title="Pets, drawn and not",
    citation="nobody, 2020",
    licence="none at all",
    domains=("photo", "sketch"),
    classes=("cat", "dog"),
    counts={"photo": (2, 3), "sketch": (3, 2)},
    defects=(Defect(files=("sketch/cat/0",), what="a cat that is a dog"),),
    notes=("Sketches are few.",),
    layout="photo|sketch / cat|dog / image",
    obtain="draw it yourself",
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or written to the folders of whoever runs the tests."""
    monkeypatch.delenv("GENERALIZEFORMER_DATA", raising=False)
    monkeypatch.setenv("GENERALIZEFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(console, "_width", 120)


@pytest.fixture(scope="module")
def datasets() -> Path:
    """The folder of real datasets."""
    return Path(os.environ["GENERALIZEFORMER_DATA"])


@pytest.fixture
def pets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A dataset `pets` in the catalogue."""
    module: Any = ModuleType(f"{DATASETS}.pets")
    module.__doc__ = "Pets: of two kinds."
    module.PUBLISHED, module.Config = PUBLISHED, _files.Config

    def build(config: _files.Config, report: Any = None) -> Any:
        return _files.load("pets", PUBLISHED, config, report=report)

    module.build = build
    known = [*catalog.names(DATASETS), "pets"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(catalog, "names", lambda package: known)
    return module  # type: ignore[no-any-return]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of pets, as published."""
    assert PUBLISHED.counts is not None
    random = np.random.default_rng(0)
    for domain, counts in PUBLISHED.counts.items():
        for label, count in zip(PUBLISHED.classes, counts, strict=True):
            folder = tmp_path / "all" / "pets" / domain / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 255, (20, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return tmp_path / "all" / "pets"


def test_every_verb_of_data_has_help_with_a_text_for_every_flag(command: Command) -> None:
    for verb in data.VERBS:
        ended = command("data", verb, "--help")
        assert (ended.status, ended.err) == (0, "")
        assert f"usage: generalizeformer data {verb}" in ended.out
        text = data.VERBS[verb].__doc__ or ""
        assert text.splitlines()[0] in " ".join(ended.out.split())
        for parameter in inspect.signature(data.VERBS[verb]).parameters:
            assert f"        {parameter}: " in text


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_data_alone_tells_its_verbs(command: Command, words: list[str]) -> None:
    ended = command("data", *words)
    assert (ended.status, ended.err) == (0, "")
    assert all(verb in ended.out for verb in data.VERBS)


def test_words_that_cannot_be_parsed_end_with_2(command: Command) -> None:
    for words in (["fly"], ["check"], ["check", "pacs", "--roto", "x"]):
        ended = command("data", *words)
        assert (ended.status, ended.out) == (2, "")
        assert "Traceback" not in ended.err


@pytest.mark.parametrize("verb", ["info", "check", "prepare", "download"])
def test_a_misspelt_dataset_is_answered_with_the_nearest(refused: Refused, verb: str) -> None:
    assert refused("data", verb, "pcas") == "datasets: there is no 'pcas'; did you mean 'pacs'?"


# list and info


def test_the_list_has_every_dataset_and_says_whether_it_is_there(
    command: Command, pets: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENERALIZEFORMER_DATA", str(root.parent))
    ended = command("data", "list")
    assert (ended.status, ended.err) == (0, "")
    lines = {line.split()[0]: line.split() for line in ended.out.splitlines()}
    assert set(catalog.names(DATASETS)) <= set(lines)
    assert lines["pets"] == ["pets", "Pets,", "drawn", "and", "not", "2", "2", "10", "found"]
    assert lines["pacs"] == ["pacs", "PACS", "4", "7", "9,991", "not", "found"]
    assert lines["digits"] == [
        "digits",
        "Rotated",
        "digits",
        "7",
        "10",
        "5,000",
        "turned",
        "embedded",
    ]
    assert lines["rotated_mnist"][-5:] == ["10", "70,000", "turned", "not", "found"]
    assert lines["synthetic"][-4:] == ["240", "drawn", "when", "needed"]
    assert f"searched: {root.parent}" in ended.out


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_word_of_the_list_is_cut(
    command: Command, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_width", columns)
    words = command("data", "list").out.split()
    assert {"rotated_fashion_mnist", "TerraIncognita", "24,330", "not", "found"} <= set(words)


def test_info_tells_all_that_is_published(command: Command, pets: ModuleType) -> None:
    ended = command("data", "info", "pets")
    assert (ended.status, ended.err) == (0, "")
    for words in (
        "Pets, drawn and not",
        "citation: nobody, 2020",
        "licence: none at all",
        "2 domains: photo, sketch",
        "2 classes: cat, dog",
        "images: 10",
        "│ all   │     5 │      5 │  10 │",
        "known defect: sketch/cat/0: a cat that is a dog",
        "note: Sketches are few.",
        "layout: photo|sketch / cat|dog / image",
        "how to get it: draw it yourself",
        "files: not found, in $GENERALIZEFORMER_DATA/pets",
    ):
        assert words in ended.out


@pytest.mark.parametrize("name", ["digits", "synthetic", "folder"])
def test_info_on_what_is_not_published_has_its_settings(command: Command, name: str) -> None:
    module = importlib.import_module(f"{DATASETS}.{name}")
    ended = command("data", "info", name)
    assert (ended.status, ended.err) == (0, "")
    assert (module.__doc__ or "").splitlines()[0] in ended.out
    for field in module.Config.__dataclass_fields__:
        assert f"setting {field}: " in ended.out


def test_info_works_for_every_dataset(command: Command) -> None:
    for name in catalog.names(DATASETS):
        ended = command("data", "info", name)
        assert (ended.status, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("name", "fetched"), [("rotated_mnist", True), ("vlcs", True), ("living17", False)]
)
def test_info_tells_whether_the_files_can_be_fetched(
    command: Command, name: str, fetched: bool
) -> None:
    words = f"to fetch it: generalizeformer data download {name}\n"
    assert (words in command("data", "info", name).out) == fetched


# check


def test_files_as_published_have_no_faults(command: Command, pets: ModuleType, root: Path) -> None:
    ended = command("data", "check", "pets", "--root", root)
    assert ended.status == 0, ended
    assert "│ cat   │     2 │      3 │   5 │" in ended.out
    assert "│ dog   │     3 │      2 │   5 │" in ended.out
    assert "│ all   │     5 │      5 │  10 │" in ended.out
    lines = ended.out.splitlines()
    assert lines[-3:] == [
        "10 images",
        "known defect: sketch/cat/0: a cat that is a dog",
        "pets: no faults",
    ]


def test_the_root_is_found_below_the_folder_of_all_datasets(
    command: Command, pets: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENERALIZEFORMER_DATA", str(root.parent))
    assert command("data", "check", "pets").out.endswith("pets: no faults\n")


def test_every_fault_is_named_on_a_line_and_the_end_is_2(
    command: Command, pets: ModuleType, root: Path
) -> None:
    shutil.rmtree(root / "sketch" / "dog")
    (root / "photo" / "cat" / "notes.txt").write_text("cats")
    image = root / "photo" / "dog" / "1.jpg"
    image.write_bytes(image.read_bytes()[:300])
    ended = command("data", "check", "pets", "--root", root)
    assert ended.status == 2
    lines = ended.out.splitlines()
    starts = (
        "missing class: sketch/dog: this class is missing",
        "misplaced: photo/cat/notes.txt: not an image",
        "truncated: photo/dog/1.jpg: only a part of the file is there (300 bytes)",
    )
    for start in starts:
        assert len([line for line in lines if line.startswith(start)]) == 1, start
    last = ended.err.splitlines()[-1]
    assert last == f"error: pets: 3 faults in {root}; mend what is named above and check again"


def test_of_many_faults_of_a_kind_the_first_are_named_and_the_rest_counted(
    command: Command, pets: ModuleType, root: Path
) -> None:
    for number in range(33):
        (root / "photo" / "cat" / f"{number:02d}.txt").write_text("cats")
    ended = command("data", "check", "pets", "--root", root)
    named = [line for line in ended.out.splitlines() if line.startswith("misplaced: photo")]
    assert len(named) == 20
    assert "misplaced: and 13 more" in ended.out.splitlines()
    assert "pets: 33 faults" in ended.err


def test_faults_of_two_kinds_that_take_turns_are_counted_by_kind(
    command: Command, pets: ModuleType, root: Path
) -> None:
    for number in range(50):
        cut = bytes((0xFF, 0xD8, number)) if number % 2 else f"text {number}".encode()
        (root / "photo" / "cat" / f"{number:02d}.jpg").write_bytes(cut)
    lines = command("data", "check", "pets", "--root", root).out.splitlines()
    for kind in ("truncated", "unreadable"):
        assert len([line for line in lines if line.startswith(f"{kind}: photo/cat/")]) == 20
        assert f"{kind}: and 5 more" in lines


def test_files_of_ones_own_are_checked_with_each_other(command: Command, root: Path) -> None:
    assert command("data", "check", "folder", "--root", root).out.endswith("folder: no faults\n")
    shutil.rmtree(root / "sketch" / "dog")
    ended = command("data", "check", "folder", "--root", root)
    assert ended.status == 2
    assert "missing class: sketch/dog: this class is missing, but photo has it" in ended.out
    assert f"folder: 1 fault in {root}; " in ended.err


def test_names_that_are_no_text_are_told_with_escapes(command: Command, root: Path) -> None:
    odd = os.fsdecode(b"caf\xe9")
    for domain in PUBLISHED.domains:
        (root / domain / "cat").rename(root / domain / odd)
    (root / "photo" / odd / "0.jpg").write_bytes(b"broken")
    ended = command("data", "check", "folder", "--root", root)
    assert ended.status == 2
    assert "│ caf\\xe9 │" in ended.out
    assert "unreadable: photo/caf\\xe9/0.jpg: not an image" in ended.out


def test_an_empty_class_folder_is_a_fault(command: Command, pets: ModuleType, root: Path) -> None:
    for path in (root / "sketch" / "dog").iterdir():
        path.unlink()
    ended = command("data", "check", "pets", "--root", root)
    assert ended.status == 2
    assert "empty: sketch/dog: a folder without images; fill it or take it away\n" in ended.out


def test_data_that_is_not_there_is_told_with_how_to_get_it(
    refused: Refused, pets: ModuleType, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere"
    for verb in ("check", "prepare"):
        assert refused("data", verb, "pets", "--root", nowhere) == (
            f"{nowhere}: no such folder or file, so pets is not there; check the path, or get the "
            "files: draw it yourself"
        )
        assert (
            "pets: no root was given and GENERALIZEFORMER_DATA is not set; give --root"
            in refused("data", verb, "pets")
        )
        assert refused("data", verb, "folder") == (
            "folder: give --root, the folder or zip that holds domain/class/image"
        )


@pytest.mark.parametrize(
    ("name", "how"), [("digits", "embedded"), ("synthetic", "drawn when needed")]
)
def test_what_has_no_files_needs_no_check(command: Command, name: str, how: str) -> None:
    said = f"{name} is {how}, so there are no files to check\n"
    assert command("data", "check", name) == (0, said, "")
    assert "so there is nothing to prepare" in command("data", "prepare", name).out


def test_a_dataset_may_check_its_files_itself(
    command: Command, pets: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    found = [f"{root}: the labels\nare upside down"]

    def check(root: Path) -> list[str]:
        asked.append(root)
        return found

    monkeypatch.setattr(pets, "check_files", check, raising=False)
    ended = command("data", "check", "pets", "--root", root)
    assert (ended.status, asked) == (2, [root])
    assert ended.out == f"{root}: the labels are upside down\n"
    found.clear()
    assert command("data", "check", "pets", "--root", root) == (0, "pets: no faults\n", "")


def test_a_dataset_may_map_its_files_itself(
    command: Command, pets: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "photo").rename(root / "train")

    def tree(config: _files.Config) -> trees.Tree:
        assert config.root == str(root)
        return trees.scan(root, {"train": "photo"})

    monkeypatch.setattr(pets, "tree", tree, raising=False)
    assert command("data", "check", "pets", "--root", root).out.endswith("pets: no faults\n")


@pytest.mark.data
def test_pacs_is_as_published(command: Command, datasets: Path) -> None:
    ended = command("data", "check", "pacs", "--root", datasets / "pacs")
    assert ended.status == 0, ended
    lines = ended.out.splitlines()
    assert "│ all      │        2,048 │   2,344 │ 1,670 │  3,929 │ 9,991 │" in lines
    assert "9,991 images" in lines
    known = [line for line in lines if line.startswith("known defect: ")]
    assert [line.split()[2] for line in known] == ["sketch/dog/n02103406_4068-1:"]
    assert lines[-1] == "pacs: no faults"


# prepare and download


def test_preparing_says_how_much_and_where_and_the_second_time_that_it_is_ready(
    command: Command, pets: ModuleType, root: Path, tmp_path: Path
) -> None:
    words = ("data", "prepare", "pets", "--root", root, "--size", 100)
    first, second = command(*words), command(*words)
    assert (first.status, second.status) == (0, 0)
    place = next((tmp_path / "cache").iterdir())
    assert "pets: 10 images, prepared in " in first.out
    assert first.out.endswith(f"0.3 MB in {place}\n")
    assert second.out.startswith("pets: 10 images, ready already; 0.3 MB in ")


def test_the_cache_may_be_anywhere(
    command: Command, pets: ModuleType, root: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    ended = command("data", "prepare", "pets", "--root", root, "--size", 8, "--cache", other)
    assert f" MB in {next(other.iterdir())}" in ended.out
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_prepared_is_one_line(
    refused: Refused, pets: ModuleType, root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    words = ("data", "prepare", "pets", "--root", root)
    assert "is a file, but results need a folder" in refused(*words, "--cache", file)
    assert "size is 0" in refused(*words, "--size", 0)
    shutil.rmtree(root / "sketch")
    assert "no domain 'sketch'" in refused(*words, "--size", 8)


def test_a_download_goes_to_the_root_or_to_the_folder_of_all_datasets(
    command: Command, pets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(root: Path, report: Any) -> str:
        report(1, 1)
        return f"all of it is in {root}"

    monkeypatch.setattr(pets, "download", fetched, raising=False)
    monkeypatch.chdir(tmp_path)
    assert command("data", "download", "pets").out == "all of it is in data/pets\n"
    monkeypatch.setenv("GENERALIZEFORMER_DATA", str(tmp_path))
    assert command("data", "download", "pets").out == f"all of it is in {tmp_path / 'pets'}\n"
    said = command("data", "download", "pets", "--root", tmp_path / "here").out
    assert said == f"all of it is in {tmp_path / 'here'}\n"


def test_a_download_that_is_refused_is_one_line(refused: Refused, tmp_path: Path) -> None:
    line = refused("data", "download", "living17", "--root", tmp_path / "here")
    assert "image-net.org" in line
    assert not (tmp_path / "here").exists()


def test_the_cache_of_a_dataset_with_squares_of_its_own_is_found(
    command: Command, pets: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(config: _files.Config, report: Any = None) -> Any:
        return _files.load("pets", PUBLISHED, config, "crop", report)

    monkeypatch.setattr(pets, "build", build)
    monkeypatch.setattr(pets, "HOW", "crop", raising=False)
    words = ("data", "prepare", "pets", "--root", root, "--size", 8)
    assert "prepared in " in command(*words).out
    assert "ready already" in command(*words).out


@pytest.mark.parametrize(("seconds", "told"), [(0.1, False), (1.0, True)])
def test_the_rate_of_brief_work_is_not_told(
    seconds: float, told: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clocked = functools.partial(Progress, get_time=lambda: now[0], auto_refresh=False)
    monkeypatch.setattr(_terminal, "Progress", clocked)
    with _terminal.count_progress("counting") as report:
        for done in range(11):
            report(done, 10)
            now[0] += seconds
    shown = capsys.readouterr().err
    assert "counting" in shown
    assert ("/s" in shown) == told
