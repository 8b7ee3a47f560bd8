from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from generalizeformer.config import from_dict, to_dict
from generalizeformer.data.datasets import _files, folder
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.storage.published import Published
from generalizeformer.errors import DataError, UserError
from generalizeformer.imaging.files import read_image, resized

PATHS = [f"{d}/{c}/{n}.png" for d in ("old", "New") for c in ("dog", "Cat") for n in ("2", "10")]


def fill(root: Path, paths: list[str]) -> Path:
    draw = np.random.default_rng(0)
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (9, 7, 3), dtype=np.uint8)).save(root / path)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill(tmp_path / "mine", PATHS)


def build(root: Path) -> DomainDataset:
    return folder.build(folder.Config(root=str(root), size=5, cache=str(root.parent / "cache")))


def test_folders_become_domains_and_classes_in_the_order_of_their_names(root: Path) -> None:
    dataset = build(root)
    assert (dataset.name, dataset.names, dataset.classes) == (
        "folder",
        ("New", "old"),
        ("Cat", "dog"),
    )
    for domain in dataset.domains:
        assert domain.labels.tolist() == [0, 0, 1, 1]
        assert domain.files == ("Cat/10", "Cat/2", "dog/10", "dog/2")


def test_every_image_is_the_one_its_file_holds(root: Path) -> None:
    for domain in build(root).domains:
        assert domain.files is not None
        for image, file in zip(domain.images, domain.files, strict=True):
            whole = read_image(root / domain.name / f"{file}.png", 3)
            assert torch.equal(image, resized(whole, 5, "squash"))


def test_domains_are_parts_of_one_mapped_file(root: Path) -> None:
    first, second = build(root).domains
    assert first.stored.untyped_storage().data_ptr() == second.stored.untyped_storage().data_ptr()


def test_progress_is_reported(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    config = folder.Config(root=str(root), size=5, cache=str(root.parent / "cache"))
    folder.build(config, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (8, 8)


def test_one_domain_is_enough(tmp_path: Path) -> None:
    assert build(fill(tmp_path / "mine", PATHS[:4])).names == ("old",)


def test_domains_with_different_classes_are_refused_by_name(root: Path) -> None:
    fill(root, ["old/horse/1.png"])
    with pytest.raises(
        DataError, match=r"domain 'New' has no class 'horse'; all .*: Cat, dog, horse$"
    ):
        build(root)


def test_a_tree_without_domains_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="but domain/class/image is expected"):
        build(fill(tmp_path / "mine", ["dog/1.png", "cat/1.png"]))


def test_the_root_must_be_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GENERALIZEFORMER_DATA", str(tmp_path))
    with pytest.raises(DataError, match="folder: no root was given; give --root"):
        folder.build(folder.Config())


def test_settings_survive_plain_data() -> None:
    config = folder.Config(root="/x", size=64, cache="/y")
    assert from_dict(folder.Config, to_dict(config)) == config


def test_a_size_that_shows_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="size is 0; images need at least 1 pixel"):
        from_dict(folder.Config, {"size": 0})


PUBLISHED = Published(
    title="Toy", citation="", licence="", domains=("old", "New"), classes=("dog", "Cat")
)


def load(root: Path, published: Published) -> DomainDataset:
    config = _files.Config(root=str(root), size=5, cache=str(root.parent / "cache"))
    return _files.load("toy", published, config)


def test_published_names_set_the_order(root: Path) -> None:
    dataset = load(root, PUBLISHED)
    assert (dataset.names, dataset.classes) == (("old", "New"), ("dog", "Cat"))
    for domain in dataset.domains:
        assert domain.files is not None
        words = [dataset.classes[label] for label in domain.labels.tolist()]
        assert words == [file.split("/")[0] for file in domain.files]
        whole = read_image(root / domain.name / f"{domain.files[0]}.png", 3)
        assert torch.equal(domain.images[0], resized(whole, 5, "squash"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("third/dog/1.png", "has a domain 'third' that does not belong there; keep only: old, New"),
        (
            "old/horse/1.png",
            "domain 'old' has a class 'horse' that does not belong there; keep only",
        ),
    ],
)
def test_what_is_not_published_is_refused_by_name(root: Path, more: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(fill(root, [more]), PUBLISHED)


def test_what_is_published_and_missing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine has no domain 'New'; all of these must be there"):
        load(fill(tmp_path / "mine", PATHS[:4]), PUBLISHED)
    with pytest.raises(DataError, match=r"domain 'New' has no class 'dog'; all .*: dog, Cat$"):
        load(fill(tmp_path / "mine", PATHS[6:]), PUBLISHED)


def test_a_class_that_is_published_as_empty_may_be_missing(tmp_path: Path) -> None:
    counts = {"old": (2, 2), "New": (0, 2)}
    published = Published(
        title="",
        citation="",
        licence="",
        domains=("old", "New"),
        classes=("dog", "Cat"),
        counts=counts,
    )
    dataset = load(fill(tmp_path / "mine", PATHS[:4] + PATHS[6:]), published)
    assert dataset["New"].labels.tolist() == [1, 1]


def test_a_root_is_found_below_the_folder_of_all_datasets(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENERALIZEFORMER_DATA", str(root.parent))
    assert _files.find_root("mine", None) == str(root)
    assert _files.find_root("mine", "/else") == "/else"
    with pytest.raises(
        DataError, match=r"pacs: no root was given and there is no .*pacs; give --root"
    ):
        _files.find_root("pacs", None)
    monkeypatch.delenv("GENERALIZEFORMER_DATA")
    wanted = (
        r"GENERALIZEFORMER_DATA is not set; give --root, or set GENERALIZEFORMER_DATA to the folder "
        r"that holds pacs; `generalizeformer data info pacs` says how to get the files$"
    )
    with pytest.raises(DataError, match=wanted):
        _files.find_root("pacs", None)
