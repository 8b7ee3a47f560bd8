"""TerraIncognita: animals before camera traps at four places, by day and by night.

Beery, Van Horn and Perona, 2018; four locations and ten classes of it, as is usual for domain
generalisation. The published archives hold one folder of images and five files of annotations,
which `make_tree` turns into folders.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from generalizeformer.data.datasets._files import Config, find_root, from_tree
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.storage.archives import move_into_place, require_new
from generalizeformer.data.storage.cache import Report
from generalizeformer.data.storage.download import archive_folder, fetched
from generalizeformer.data.storage.published import Defect, Published
from generalizeformer.data.storage.trees import Tree, scan
from generalizeformer.errors import DataError

__all__ = ["PUBLISHED", "Config", "build", "download", "make_tree", "tree"]

_ADDRESSES = tuple(
    f"https://storage.googleapis.com/public-datasets-lila/caltechcameratraps/{name}.tar.gz"
    for name in ("eccv_18_annotations", "eccv_18_all_images_sm")
)
_CLASS_FOLDERS = {"landscape": "empty"}  # in some copies
_PARTS = ("train", "cis_val", "cis_test", "trans_val", "trans_test")


def _twice(location: str, image: str, *classes: str) -> Defect:
    return Defect(
        files=tuple(f"{location}/{label}/{image}-*" for label in classes),
        what=f"one image with two labels: {' and '.join(classes)}",
        kinds=("contradiction",),
        count=1,
    )


PUBLISHED = Published(
    title="TerraIncognita",
    citation="S. Beery, G. Van Horn and P. Perona, Recognition in Terra Incognita, ECCV 2018",
    licence="Community Data License Agreement, permissive variant",
    domains=("location_100", "location_38", "location_43", "location_46"),
    classes=(
        *("bird", "bobcat", "cat", "coyote", "dog"),
        *("empty", "opossum", "rabbit", "raccoon", "squirrel"),
    ),
    counts={
        "location_100": (54, 57, 227, 12, 384, 181, 989, 92, 2552, 331),
        "location_38": (3, 12, 2295, 48, 360, 194, 4500, 1396, 198, 761),
        "location_43": (72, 1104, 3, 834, 195, 562, 777, 73, 390, 10),
        "location_46": (90, 999, 21, 873, 30, 726, 1339, 566, 1464, 14),
    },
    totals={
        "location_100": (4879, 4741),
        "location_38": (9767, 9736),
        "location_43": (4020, 3970),
        "location_46": (6122, 5883),
    },
    defects=(
        _twice("location_43", "5968bf89", "bobcat", "squirrel"),
        _twice("location_46", "59d750d8", "bobcat", "opossum"),
        _twice("location_46", "5a1cafac", "bobcat", "rabbit"),
        _twice("location_46", "599d7e8c", "bobcat", "squirrel"),
    ),
    notes=(
        "Two versions are about: 24,788 images (first) and 24,330 (what is fetched today); say which one was used.",
        "Some copies have a folder `landscape` for the class `empty`; both are read.",
        "Frames come in bursts, so a random validation part holds near copies of what was learned from.",
        "Labels shift far between locations: 3 birds at location 38, 3 cats at location 43.",
    ),
    layout="<root>/location_<38|43|46|100>/<class>/<uuid>.jpg",
    obtain=f"fetch {_ADDRESSES[0]} and {_ADDRESSES[1]} into the folder <root>.download, and run `generalizeformer "
    "data download terra_incognita --root <root>`, which makes the folders of them without a network",
    addresses=_ADDRESSES,
)


def build(config: Config, report: Report | None = None) -> DomainDataset:
    """The four locations, the images squashed into a square."""
    return from_tree("terra_incognita", PUBLISHED, tree(config), config, report=report)


def tree(config: Config) -> Tree:
    """The files, under the published class names whatever their folders are called."""
    found = scan(find_root("terra_incognita", config.root))
    renamed = (replace(e, label=_CLASS_FOLDERS.get(e.label, e.label)) for e in found.entries)
    # No other class lies between the two names, so that the order is still that of the names.
    return replace(found, entries=tuple(renamed))


def download(root: Path, report: Report | None = None) -> str:
    """A sentence that says what was fetched and made."""
    require_new(root)
    work = archive_folder(root)
    labels, pictures = PUBLISHED.addresses
    sentence = make_tree(fetched(labels, work), fetched(pictures, work, report), root)
    shutil.rmtree(work)
    return sentence


def make_tree(annotations: Path, images: Path, root: Path) -> str:
    """A sentence that says how many images came to root/location/class/, out of both unpacked archives.

    Images become hard links where the file system can make them, so they take no space twice.
    """
    require_new(root)
    wanted = set(_wanted(_merged(annotations)))
    places = {path.name: path for path in images.rglob("*") if path.is_file()}
    found = sorted(place for place in wanted if place[2] in places)
    if not found:
        raise DataError(f"{images}: none of the annotated images is here; unpack the images there")
    beside = root.with_name(f".{root.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)  # what a killed run left
    for location, label, name in found:
        _link(places[name], beside / location / label / name)
    move_into_place(beside, root)
    lost = len(wanted) - len(found)
    return f"{root}: {len(found):,} images" + (
        f"; {lost:,} annotated ones are missing" * (lost > 0)
    )


def _merged(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The categories, images and annotations of all five files."""
    merged: dict[str, list[dict[str, Any]]] = {"categories": [], "images": [], "annotations": []}
    for part in _PARTS:
        path = next(iter(sorted(folder.rglob(f"{part}*.json"))), None)
        if path is None:
            raise DataError(f"{folder}: there is no {part}*.json; unpack the annotations there")
        try:
            content = json.loads(path.read_text("utf-8"))
            for name, rows in merged.items():
                rows += content[name]
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{path}: does not hold {', '.join(merged)}; unpack the annotations again"
            ) from None
    return merged


def _wanted(merged: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[str, str, str]]:
    """Location, class and file name of every image to keep. An image with two labels comes twice."""
    labels = {category["id"]: category["name"] for category in merged["categories"]}
    images = {image["id"]: image for image in merged["images"]}
    for annotation in merged["annotations"]:
        image = images.get(annotation["image_id"], {})
        location = f"location_{image.get('location')}"
        label = labels.get(annotation["category_id"])
        if location in PUBLISHED.domains and label in PUBLISHED.classes:
            yield location, label, PurePosixPath(image["file_name"]).name


def _link(image: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(image, place)
    except OSError:
        shutil.copyfile(image, place)
