"""A tree is compared with what is published, and every file of it is looked at."""

import io
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from generalizeformer.data.storage.checks import check, image_counts
from generalizeformer.data.storage.findings import Finding, Findings, Kind
from generalizeformer.data.storage.published import Defect, Published
from generalizeformer.data.storage.trees import scan

DOMAINS, CLASSES = ("photo", "sketch"), ("cat", "dog")
PUBLISHED = Published(
    title="Pets",
    citation="nobody, 2020",
    licence="none",
    domains=DOMAINS,
    classes=CLASSES,
    counts={"photo": (3, 2), "sketch": (2, 4)},
    folders={"pictures": "photo"},
)


def encoded(seed: int, ending: str = "png") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (24, 20, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, {"jpg": "jpeg"}.get(ending, ending))
    return content.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The published tree, without a fault; names are numbers within a class, as in Office-Home."""
    assert PUBLISHED.counts is not None
    numbers = iter(range(100))
    for domain, counts in PUBLISHED.counts.items():
        for label, count in zip(CLASSES, counts, strict=True):
            folder = tmp_path / "pets" / domain / label
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number:05d}.png").write_bytes(encoded(next(numbers)))
    return tmp_path / "pets"


def checked(root: Path, published: Published | None = PUBLISHED) -> Findings:
    folders = {} if published is None else published.folders
    return check(scan(root, folders), published, lambda done, total: None)


def faults(root: Path, published: Published | None = PUBLISHED) -> list[tuple[Kind, str]]:
    return [(fault.kind, fault.where) for fault in checked(root, published).faults]


def only(found: tuple[Finding, ...]) -> Finding:
    assert len(found) == 1, found
    return found[0]


def test_a_tree_as_published_has_no_faults(root: Path) -> None:
    found = checked(root)
    assert found == Findings(
        counts={"photo": {"cat": 3, "dog": 2}, "sketch": {"cat": 2, "dog": 4}}, faults=()
    )


def test_every_image_is_reported_once_and_in_order(root: Path) -> None:
    told: list[tuple[int, int]] = []
    check(scan(root), PUBLISHED, lambda done, total: told.append((done, total)))
    assert told == [(number, 11) for number in range(1, 12)]


def test_folders_of_another_name_are_the_domain_they_stand_for(root: Path) -> None:
    (root / "photo").rename(root / "pictures")
    assert faults(root) == []


def test_a_missing_domain_is_told_once(root: Path) -> None:
    shutil.rmtree(root / "sketch")
    assert faults(root) == [("missing domain", "sketch")]


def test_a_missing_class_is_told_with_its_images(root: Path) -> None:
    shutil.rmtree(root / "sketch" / "dog")
    fault = only(checked(root).faults)
    assert (fault.kind, fault.where) == ("missing class", "sketch/dog")
    assert fault.what == "this class is missing; add its folder, with its 4 images"


def test_a_domain_that_is_not_published_is_told_once(root: Path) -> None:
    shutil.copytree(root / "photo", root / "phtoo")
    for number, path in enumerate(sorted((root / "phtoo").rglob("*.png"))):
        path.write_bytes(encoded(1000 + number))
    fault = only(checked(root).faults)
    assert (fault.kind, fault.where) == ("unknown domain", "phtoo")
    assert "only photo, sketch; rename or remove it" in fault.what


def test_a_class_that_is_not_published_is_told(root: Path) -> None:
    (root / "photo" / "dog").rename(root / "photo" / "Dog")
    assert faults(root) == [("missing class", "photo/dog"), ("unknown class", "photo/Dog")]


@settings(max_examples=25, deadline=None)
@given(wanted=st.tuples(*[st.integers(1, 9)] * 4))
def test_counts_that_differ_say_how_many_are_missing_or_too_many(
    wanted: tuple[int, int, int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, there = tmp_path_factory.mktemp("counts"), (3, 2, 2, 4)
    places = [f"{domain}/{label}" for domain in DOMAINS for label in CLASSES]
    for place, count in zip(places, there, strict=True):
        (root / place).mkdir(parents=True)
        for number in range(count):
            (root / place / f"{number}.gif").write_bytes(GIFS[place, number])
    published = replace(PUBLISHED, counts={"photo": wanted[:2], "sketch": wanted[2:]})
    expected = {
        place: f"{abs(want - have)} {'missing' if have < want else 'too many'}"
        for place, have, want in zip(places, there, wanted, strict=True)
        if have != want
    }
    found = checked(root, published).faults
    assert {fault.where: fault.what.rpartition(": ")[2] for fault in found} == expected
    assert all(fault.kind == "wrong count" for fault in found)


def _gifs() -> Iterator[tuple[tuple[str, int], bytes]]:
    for seed in range(40):
        domain, label, number = DOMAINS[seed % 2], CLASSES[seed // 2 % 2], seed // 4
        yield (f"{domain}/{label}", number), encoded(seed, "gif")


GIFS = dict(_gifs())


@pytest.mark.parametrize(
    ("sketches", "says"),
    [
        ((6, 5), "versions of 11, 10 images are published; this is that of 11"),
        ((7, 6), "versions of 12, 11 images are published; this is that of 11"),
    ],
)
def test_a_tree_may_be_any_version(root: Path, sketches: tuple[int, int], says: str) -> None:
    totals = {"photo": (5, 5), "sketch": sketches}
    found = checked(root, replace(PUBLISHED, totals=totals))
    assert found.version == says
    assert found.faults == ()


def test_class_counts_of_one_version_are_not_asked_of_another(root: Path) -> None:
    published = replace(
        PUBLISHED,
        counts={"photo": (4, 4), "sketch": (2, 9)},
        totals={"photo": (8, 5), "sketch": (11, 7)},
    )
    found = checked(root, published)
    assert found.version == "versions of 19, 12 images are published; this is nearest to that of 12"
    fault = only(found.faults)
    assert (fault.kind, fault.where) == ("wrong count", "sketch")
    assert fault.what == "6 images are there, but 7 are published: 1 missing"


def test_where_no_counts_are_published_none_are_compared(root: Path) -> None:
    assert faults(root, replace(PUBLISHED, counts=None)) == []


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "gif"])
@pytest.mark.parametrize("part", [0.5, 0.98])
def test_a_truncated_image_is_told(root: Path, ending: str, part: float) -> None:
    (root / "photo/dog/00001.png").unlink()
    content = encoded(7, ending)
    (root / f"photo/dog/00001.{ending}").write_bytes(content[: int(part * len(content))])
    assert faults(root) == [("truncated", f"photo/dog/00001.{ending}")]


@pytest.mark.parametrize("content", [b"a web page, perhaps", b"<html>" * 99, bytes(500)])
def test_an_unreadable_image_is_told(root: Path, content: bytes) -> None:
    (root / "photo/dog/00001.png").write_bytes(content)
    fault = only(checked(root).faults)
    assert (fault.kind, fault.where) == ("unreadable", "photo/dog/00001.png")
    assert "\n" not in fault.what
    assert not fault.what.startswith("photo/dog")  # where it is is told once


def test_an_empty_file_is_a_fault(root: Path) -> None:
    (root / "photo/dog/00001.png").write_bytes(b"")
    assert only(checked(root).faults).where == "photo/dog/00001.png"


def test_empty_files_are_not_copies_of_each_other(root: Path) -> None:
    for place in ("photo/dog/00001.png", "sketch/cat/00000.png"):
        (root / place).write_bytes(b"")
    assert [kind for kind, _ in faults(root)] == ["unreadable", "unreadable"]


def test_a_class_that_is_published_without_images_is_not_missing(root: Path) -> None:
    shutil.rmtree(root / "sketch" / "dog")
    assert faults(root, replace(PUBLISHED, counts={"photo": (3, 2), "sketch": (2, 0)})) == []


def test_a_file_that_goes_away_during_the_check_is_told(root: Path) -> None:
    tree = scan(root)
    (root / "photo/dog/00001.png").unlink()
    fault = only(check(tree, PUBLISHED, lambda done, total: None).faults)
    assert (fault.kind, fault.where) == ("unreadable", "photo/dog/00001.png")


@pytest.mark.parametrize(
    ("first", "second", "kind", "words"),
    [
        ("photo/cat/00000.png", "photo/cat/00002.png", "duplicate", "keep one of the two"),
        ("photo/cat/00000.png", "photo/dog/00001.png", "contradiction", "in two classes"),
        ("photo/cat/00000.png", "sketch/cat/00001.png", "contradiction", "in two domains"),
        ("photo/cat/00000.png", "sketch/dog/00001.png", "contradiction", "in two classes"),
    ],
)
def test_the_same_bytes_twice_are_told(
    root: Path, first: str, second: str, kind: Kind, words: str
) -> None:
    (root / second).write_bytes((root / first).read_bytes())
    fault = only(checked(root).faults)
    assert (fault.kind, fault.where) == (kind, second)
    assert f"the same bytes as {first}" in fault.what
    assert words in fault.what


def renamed(root: Path, unique: str) -> None:
    """Gives every image a name of its own, except that two classes of photos share one."""
    for number, path in enumerate(sorted(root.rglob("*.png"))):
        path.rename(path.with_name(f"{number}.png"))
    (root / "photo/dog/3.png").rename(root / "photo/dog" / unique)


def test_one_name_in_two_classes_is_a_contradiction(root: Path) -> None:
    renamed(root, "1.png")
    fault = only(checked(root).faults)
    assert (fault.kind, fault.where) == ("contradiction", "photo/dog/1.png")
    assert "the same name as photo/cat/1.png" in fault.what


def test_one_name_and_the_same_bytes_are_told_once(root: Path) -> None:
    renamed(root, "1.png")
    (root / "photo/dog/1.png").write_bytes((root / "photo/cat/1.png").read_bytes())
    assert faults(root) == [("contradiction", "photo/dog/1.png")]


def test_one_name_in_two_classes_of_ones_own_is_a_note(root: Path) -> None:
    renamed(root, "1.png")
    found = checked(root, None)
    assert found.faults == ()
    assert only(found.notes).where == "photo/dog/1.png"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("photo/dog/notes.txt", "not an image; "),
        ("photo/notes.txt", "not an image; "),
        ("photo/dog/deeper/notes.txt", "not an image; "),
        ("photo/dog/deeper/1.png", "an image that is not at domain/class/name; "),
        ("photo/1.png", "an image that is not at domain/class/name; "),
        ("1.png", "an image that is not at domain/class/name; "),
    ],
)
def test_a_file_among_the_images_is_misplaced(root: Path, path: str, words: str) -> None:
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_bytes(encoded(50))
    fault = only(checked(root).faults)
    assert (fault.kind, fault.where) == ("misplaced", path)
    assert fault.what.startswith(words)


def test_a_list_beside_the_domains_is_only_noted(root: Path) -> None:
    (root / "ImageInfo.csv").write_text("name,size")
    found = checked(root)
    assert found.faults == ()
    assert only(found.notes).where == "ImageInfo.csv"


def test_known_defects_are_told_and_are_no_faults(root: Path) -> None:
    (root / "photo/dog/00001.png").write_bytes((root / "photo/cat/00000.png").read_bytes())
    (root / "sketch/dog/00000.png").write_bytes(b"broken")
    twice = Defect(files=("photo/cat/00000", "photo/dog/00001"), what="It is in two classes.")
    broken = Defect(files=("sketch/dog/00000",), what="It cannot be read.")
    gone = Defect(files=("sketch/dog/00009",), what="It is not there any more.")
    general = Defect(files=(), what="Few dogs.")
    found = checked(root, replace(PUBLISHED, defects=(twice, broken, gone, general)))
    assert found.faults == ()
    assert [(known.where, known.what) for known in found.known] == [
        ("photo/cat/00000, photo/dog/00001", "It is in two classes."),
        ("sketch/dog/00000", "It cannot be read."),
        ("", "Few dogs."),
    ]


def test_a_pattern_of_known_copies_does_not_excuse_broken_images(root: Path) -> None:
    (root / "photo/dog/00001.png").write_bytes((root / "photo/cat/00000.png").read_bytes())
    (root / "photo/dog/00000.png").write_bytes(b"broken")
    copies = Defect(files=("photo/cat/0*", "photo/dog/0*"), what="Some.", kinds=("contradiction",))
    found = checked(root, replace(PUBLISHED, defects=(copies,)))
    assert [(fault.kind, fault.where) for fault in found.faults] == [
        ("unreadable", "photo/dog/00000.png")
    ]
    # However many files a pattern fits, it is told as it is.
    assert only(found.known).where == "photo/cat/0*, photo/dog/0*"


def test_a_known_defect_excuses_its_kinds_of_finding_only(root: Path) -> None:
    (root / "photo/cat/00001.png").write_bytes((root / "photo/cat/00000.png").read_bytes())
    (root / "sketch/dog/00000.png").write_bytes((root / "sketch/cat/00000.png").read_bytes())
    copies = Defect(files=("photo/*", "sketch/*"), what="Some.", kinds=("duplicate",))
    contradiction = ("contradiction", "sketch/dog/00000.png")
    assert faults(root, replace(PUBLISHED, defects=(copies,))) == [contradiction]
    unsaid = replace(copies, kinds=None)  # a pattern does not excuse everything
    assert faults(root, replace(PUBLISHED, defects=(unsaid,))) == [
        ("duplicate", "photo/cat/00001.png"),
        contradiction,
    ]


@pytest.mark.parametrize(("count", "beyond"), [(None, 0), (3, 0), (2, 1), (0, 3)])
def test_a_known_defect_excuses_no_more_than_are_published(
    root: Path, count: int | None, beyond: int
) -> None:
    for number in range(1, 4):
        (root / f"sketch/dog/0000{number}.png").write_bytes(
            (root / "sketch/dog/00000.png").read_bytes()
        )
    copies = Defect(files=("sketch/*",), what="Some.", kinds=("duplicate",), count=count)
    found = faults(root, replace(PUBLISHED, defects=(copies,)))
    assert [kind for kind, _ in found] == ["duplicate"] * beyond


def test_an_empty_class_folder_is_told_once(root: Path) -> None:
    shutil.rmtree(root / "sketch" / "dog")
    (root / "sketch" / "dog").mkdir()
    (root / "sketch" / "dog" / ".hidden").touch()
    for published in (PUBLISHED, None):
        fault = only(checked(root, published).faults)
        assert (fault.kind, fault.where) == ("empty", "sketch/dog")
        assert fault.what == "a folder without images; fill it or take it away"


def test_a_class_folder_that_is_empty_in_every_domain_is_told(root: Path) -> None:
    for domain in DOMAINS:
        (root / domain / "horse").mkdir()
    assert faults(root, None) == [("empty", "photo/horse"), ("empty", "sketch/horse")]


def test_an_empty_folder_inside_a_class_is_only_noted(root: Path) -> None:
    (root / "photo" / "dog" / "deeper").mkdir()
    found = checked(root)
    assert found.faults == ()
    assert only(found.notes).where == "photo/dog/deeper"


def test_a_link_to_nothing_is_told_as_such(root: Path) -> None:
    (root / "photo/dog/00001.png").unlink()
    (root / "photo/dog/00001.png").symlink_to(root / "nowhere.png")
    fault = only(checked(root).faults)
    assert (fault.kind, fault.where) == ("unreadable", "photo/dog/00001.png")
    assert "is a link to nothing; bring back what it points to, or take the link away" in fault.what


def test_a_known_defect_does_not_excuse_other_images(root: Path) -> None:
    (root / "photo/dog/00001.png").write_bytes((root / "photo/cat/00000.png").read_bytes())
    defect = Defect(files=("photo/cat/00000",), what="It is odd.")
    assert faults(root, replace(PUBLISHED, defects=(defect,))) == [
        ("contradiction", "photo/dog/00001.png")
    ]


def test_domains_of_ones_own_are_compared_with_each_other(root: Path) -> None:
    assert faults(root, None) == []
    shutil.rmtree(root / "sketch" / "dog")
    (root / "photo/dog/00001.png").write_bytes(b"broken")
    missing, broken = checked(root, None).faults
    assert (missing.kind, missing.where) == ("missing class", "sketch/dog")
    assert "but photo has it" in missing.what
    assert (broken.kind, broken.where) == ("unreadable", "photo/dog/00001.png")


def test_counts_add_up_to_the_images_of_the_tree(root: Path) -> None:
    counts = image_counts(scan(root))
    assert sum(sum(there.values()) for there in counts.values()) == len(scan(root).entries)
