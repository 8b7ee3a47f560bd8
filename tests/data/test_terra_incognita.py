"""The tree of TerraIncognita, made of small archives like the published ones."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from generalizeformer.data.datasets import terra_incognita
from generalizeformer.data.storage import fetching
from generalizeformer.data.storage.download import download
from generalizeformer.data.storage.fetching import NetworkError

PARTS = ("train", "cis_val", "cis_test", "trans_val", "trans_test")
CATEGORIES = [{"id": 1, "name": "opossum"}, {"id": 5, "name": "bobcat"}, {"id": 9, "name": "car"}]

# File name, location and categories. Locations are numbers in some files and words in others.
IMAGES: list[tuple[str, int | str, tuple[int, ...]]] = [
    ("a.jpg", 38, (1,)),
    ("b.jpg", "46", (5, 1)),
    ("c.jpg", 43, (5, 5)),
    ("elsewhere.jpg", 7, (1,)),
    ("car.jpg", 100, (9,)),
    ("lost.jpg", 100, (5,)),
]
KEPT = {
    "location_38/opossum/a.jpg",
    "location_43/bobcat/c.jpg",
    "location_46/bobcat/b.jpg",
    "location_46/opossum/b.jpg",
}


def annotated() -> dict[str, dict[str, Any]]:
    """The content of the five files; images are spread over them."""
    files: dict[str, dict[str, Any]] = {
        f"{part}_annotations.json": {"categories": CATEGORIES, "images": [], "annotations": []}
        for part in PARTS
    }
    for index, (name, location, categories) in enumerate(IMAGES):
        content = files[f"{PARTS[index % 5]}_annotations.json"]
        key = name.removesuffix(".jpg")
        content["images"].append({"id": key, "file_name": name, "location": location})
        content["annotations"] += [{"image_id": key, "category_id": c} for c in categories]
    return files


def unpacked(folder: Path) -> tuple[Path, Path]:
    """Both archives, unpacked."""
    annotations, images = folder / "annotations" / "inner", folder / "images" / "inner"
    annotations.mkdir(parents=True)
    images.mkdir(parents=True)
    for name, content in annotated().items():
        (annotations / name).write_text(json.dumps(content))
    for name, _, _ in IMAGES:
        if name != "lost.jpg":
            (images / name).write_bytes(name.encode())
    return annotations.parent, images.parent


def packed(folder: Path, files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"inner/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def inside(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_four_locations_and_ten_classes_are_kept_and_two_labels_make_two_files(
    tmp_path: Path,
) -> None:
    sentence = terra_incognita.make_tree(*unpacked(tmp_path), tmp_path / "terra")
    assert inside(tmp_path / "terra") == KEPT
    assert (tmp_path / "terra" / "location_46" / "opossum" / "b.jpg").read_bytes() == b"b.jpg"
    assert sentence.endswith("terra: 4 images; 1 annotated ones are missing")


def test_an_annotation_may_lie_in_another_file_than_its_image(tmp_path: Path) -> None:
    annotations, images = unpacked(tmp_path)
    files = {path.name: path for path in annotations.rglob("*.json")}
    first, last = (files[f"{part}_annotations.json"] for part in ("train", "trans_test"))
    moved, kept = json.loads(first.read_text()), json.loads(last.read_text())
    kept["annotations"] += moved["annotations"]
    moved["annotations"] = []
    first.write_text(json.dumps(moved))
    last.write_text(json.dumps(kept))
    terra_incognita.make_tree(annotations, images, tmp_path / "terra")
    assert inside(tmp_path / "terra") == KEPT


def test_a_file_name_that_points_outside_stays_inside(tmp_path: Path) -> None:
    annotations, images = unpacked(tmp_path)
    path = next(annotations.rglob("train*.json"))
    path.write_text(path.read_text().replace("a.jpg", "../../a.jpg"))
    terra_incognita.make_tree(annotations, images, tmp_path / "terra")
    assert inside(tmp_path / "terra") == KEPT


def test_missing_or_foreign_annotations_are_refused(tmp_path: Path) -> None:
    annotations, images = unpacked(tmp_path)
    path = next(annotations.rglob("cis_val*.json"))
    path.write_text('{"images": []}')
    with pytest.raises(ValueError, match="does not hold categories, images, annotations; unpack"):
        terra_incognita.make_tree(annotations, images, tmp_path / "terra")
    path.unlink()
    with pytest.raises(ValueError, match=r"there is no cis_val\*.json; unpack the annotations"):
        terra_incognita.make_tree(annotations, images, tmp_path / "terra")
    assert not (tmp_path / "terra").exists()


def test_a_folder_without_the_images_is_refused(tmp_path: Path) -> None:
    annotations, _ = unpacked(tmp_path)
    with pytest.raises(ValueError, match="none of the annotated images is here"):
        terra_incognita.make_tree(annotations, annotations, tmp_path / "terra")
    assert not (tmp_path / "terra").exists()


def test_downloading_fetches_both_archives_and_makes_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = {name: name.encode() for name, _, _ in IMAGES if name != "lost.jpg"}
    texts = {name: json.dumps(content).encode() for name, content in annotated().items()}
    served = {
        "eccv_18_annotations.tar.gz": packed(tmp_path, texts),
        "eccv_18_all_images_sm.tar.gz": packed(tmp_path, images),
    }

    def fetch(address: str, file: Path, report: object = None) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(served.pop(address.rpartition("/")[2]))

    monkeypatch.setattr(fetching, "from_address", fetch)
    download("terra_incognita", tmp_path / "terra")
    assert not served
    assert inside(tmp_path) == {f"terra/{name}" for name in KEPT}


def test_a_download_that_stops_after_the_first_archive_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(address: str, file: Path, report: object = None) -> None:
        asked.append(address.rpartition("/")[2])
        if "images" in address:
            raise NetworkError("there is no network")
        file.parent.mkdir()
        file.write_bytes(packed(tmp_path, {"train.json": b"{}"}))

    monkeypatch.setattr(fetching, "from_address", fetch)
    for _ in range(2):
        with pytest.raises(ValueError, match="terra_incognita: there is no network; to place the"):
            download("terra_incognita", tmp_path / "terra")
    assert asked == ["eccv_18_annotations.tar.gz", *["eccv_18_all_images_sm.tar.gz"] * 2]
    assert not (tmp_path / "terra").exists()


def test_archives_that_were_fetched_by_hand_need_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(address: str, file: Path, report: object = None) -> None:
        raise NetworkError("there is no network")

    monkeypatch.setattr(fetching, "from_address", fetch)
    with pytest.raises(ValueError, match=r"into the folder <root>\.download, and run `gen") as told:
        download("terra_incognita", tmp_path / "terra")
    work = tmp_path / "terra.download"
    work.mkdir()
    texts = {name: json.dumps(content).encode() for name, content in annotated().items()}
    images = {name: name.encode() for name, _, _ in IMAGES if name != "lost.jpg"}
    addresses = terra_incognita.PUBLISHED.addresses
    for address, files in zip(addresses, (texts, images), strict=True):
        assert address in str(told.value)
        (work / address.rpartition("/")[2]).write_bytes(packed(tmp_path, files))
    download("terra_incognita", tmp_path / "terra")
    assert inside(tmp_path) == {f"terra/{name}" for name in KEPT}
