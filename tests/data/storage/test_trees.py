import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.data.storage.trees import Tree, scan
from generalizeformer.errors import DataError

PATHS = ("a/dog/1.png", "a/cat/10.jpg", "a/cat/9.JPG", "b/cat/x.webp", "b/dog/y.gif")
SORTED = ["a/cat/10.jpg", "a/cat/9.JPG", "a/dog/1.png", "b/cat/x.webp", "b/dog/y.gif"]


def fill(root: Path, paths: tuple[str, ...]) -> Path:
    """Files whose content is their path: a tree needs no pictures."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


def pack(path: Path, names: tuple[str, ...], method: int = zipfile.ZIP_DEFLATED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as opened:
        for name in names:
            opened.writestr(name, name)
    return path


def contents(tree: Tree) -> list[str]:
    """The content of every image, which is its path below the folder that wraps the tree."""
    return [tree.read(entry).decode() for entry in tree.entries]


def folder_and_zips(root: Path) -> Path:
    pack(root / "a.zip", PATHS[:3])
    return fill(root, PATHS[3:])


LAYOUTS = {
    "folder": lambda root: fill(root, PATHS),
    "zips": lambda root: pack(root / "a.zip", PATHS[:3]) and pack(root / "b.ZIP", PATHS[3:]).parent,
    "folder and zip": folder_and_zips,
    "one zip": lambda root: pack(root / "all.zip", PATHS),
    "stored zip": lambda root: pack(root / "all.zip", PATHS, zipfile.ZIP_STORED),
    "wrapped folder": lambda root: fill(root / "kfold", PATHS).parent,
    "twice wrapped folder": lambda root: fill(root / "data" / "kfold", PATHS).parents[1],
    "wrapped zip": lambda root: pack(root / "w.zip", tuple(f"PACS/{path}" for path in PATHS)),
    "zip of Windows": lambda root: pack(
        root / "all.zip", tuple(path.replace("/", "\\") for path in PATHS)
    ),
    "zips in a folder": lambda root: pack(root / "images" / "all.zip", PATHS).parents[1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_tree(tmp_path: Path, layout: str) -> None:
    tree = scan(LAYOUTS[layout](tmp_path))
    assert [entry.path for entry in tree.entries] == SORTED
    read = [content.removeprefix("PACS/").replace("\\", "/") for content in contents(tree)]
    assert read == SORTED
    assert [e.size for e in tree.entries] == [len(content) for content in contents(tree)]
    assert tree.domains == ("a", "b")
    assert tree.labels("a") == tree.labels("b") == ("cat", "dog")
    assert tree.counts()["a", "cat"] == 2
    assert tree.others == ()


def test_stems_are_paths_without_their_endings(tmp_path: Path) -> None:
    fill(tmp_path, ("a/dog/n02_4068-1.v2.png",))
    assert scan(tmp_path).entries[0].stem == "a/dog/n02_4068-1.v2"


@settings(deadline=None, max_examples=25)
@given(
    names=st.sets(
        st.from_regex(r"[A-Za-z0-9_ ]{1,6}\.(png|jpeg)", fullmatch=True), min_size=1, max_size=9
    )
)
def test_the_order_is_that_of_python_whatever_the_names(
    names: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = tuple(f"d/c/{name}" for name in names)
    tree = scan(pack(tmp_path_factory.mktemp("order") / "all.zip", paths))
    assert [entry.name for entry in tree.entries] == sorted(names)
    assert contents(tree) == [f"d/c/{name}" for name in sorted(names)]


def test_a_single_domain_is_not_taken_for_a_wrapping_folder(tmp_path: Path) -> None:
    assert scan(fill(tmp_path, PATHS[:3])).domains == ("a",)


def test_other_names_of_domains_are_translated(tmp_path: Path) -> None:
    tree = scan(fill(tmp_path, PATHS), {"a": "z", "q": "b"})
    assert tree.domains == ("b", "z")
    assert [entry.domain for entry in tree.entries] == ["b", "b", "z", "z", "z"]


def test_what_is_no_image_in_its_place_is_told(tmp_path: Path) -> None:
    told = ("a/dog/notes.txt", "a/dog/deep/1.png", "logo.png", "a/dog/old.bmp")
    untold = ("a/.hidden/x/1.png", "a/dog/.2.png", "__MACOSX/a/1.png.txt", "splits/a.txt")
    fill(tmp_path, PATHS + told + untold)
    assert scan(tmp_path).others == tuple(sorted(told))
    packed = pack(tmp_path / "packed" / "all.zip", PATHS + told + untold)
    assert scan(packed).others == tuple(sorted(told))


def test_the_key_changes_with_every_file(tmp_path: Path) -> None:
    fill(tmp_path, PATHS)
    keys = [scan(tmp_path).key(), scan(tmp_path).key()]
    assert keys[0] == keys[1]
    os.utime(tmp_path / PATHS[0], ns=(1, 1))
    keys.append(scan(tmp_path).key())
    (tmp_path / PATHS[1]).unlink()
    keys.append(scan(tmp_path).key())
    fill(tmp_path, ("b/dog/new.png",))
    keys.append(scan(tmp_path).key())
    assert len(set(keys)) == 4


def test_the_key_of_a_zip_follows_its_content_and_not_its_age(tmp_path: Path) -> None:
    path = pack(tmp_path / "all.zip", PATHS)
    key = scan(path).key()
    os.utime(path, ns=(1, 1))
    assert scan(path).key() == key
    with zipfile.ZipFile(path, "w") as opened:
        for name in PATHS:
            opened.writestr(name, name.swapcase())  # as long as before
    assert scan(path).key() != key


def test_many_threads_read_the_same_zip(tmp_path: Path) -> None:
    names = tuple(f"a/b/{number}.png" for number in range(200))
    tree = scan(pack(tmp_path / "all.zip", names))
    wrong: list[str] = []

    def read() -> None:
        wrong.extend(e.path for e in tree.entries * 3 if tree.read(e).decode() != e.path)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    fill(tmp_path, PATHS)
    (tmp_path / "a" / "dog" / "loop").symlink_to(tmp_path)
    assert [entry.path for entry in scan(tmp_path).entries] == SORTED


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing: no such folder or file; check the path$"):
        scan(tmp_path / "nothing")
    with pytest.raises(DataError, match=r": no images in it; images end in \.jpg"):
        scan(tmp_path)
    fill(tmp_path, ("notes.txt",))
    with pytest.raises(DataError, match=r"notes\.txt: a file, but not a zip; name a folder"):
        scan(tmp_path / "notes.txt")


def test_a_tree_without_domains_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, ("dog/1.png", "cat/1.png"))
    wanted = r"images lie at (dog|cat)/1\.png, but domain/class/image is expected, .* their domain$"
    with pytest.raises(DataError, match=wanted):
        scan(tmp_path)


def test_an_image_in_a_folder_and_in_its_zip_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "a.zip", PATHS)
    fill(tmp_path, PATHS[:1])
    with pytest.raises(DataError, match=r"a/dog/1\.png is there twice, .*a\.zip.*not both$"):
        scan(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 cut"])
def test_a_broken_zip_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path, PATHS)
    (tmp_path / "bad.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.zip: not a zip that can be read .*make it again$"):
        scan(tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_damaged_image_in_a_zip_is_refused_by_name(tmp_path: Path, method: int) -> None:
    path = pack(tmp_path / "all.zip", ("a/b/1.png",), method)
    tree = scan(path)
    content = bytearray(path.read_bytes())
    content[30 + len("a/b/1.png")] ^= 0xFF  # the first byte after the header and the name
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"all\.zip: a/b/1\.png is damaged in the zip"):
        tree.read(tree.entries[0])


@pytest.mark.parametrize(
    "name",
    [
        *("../a/b/1.png", "/a/b/1.png", "a/../../1.png", "C:/b/1.png"),
        *("..\\a\\b\\1.png", "\\a\\b\\1.png", "a\\..\\..\\1.png", "C:\\b\\1.png"),
    ],
)
def test_a_zip_that_reaches_outside_is_refused(tmp_path: Path, name: str) -> None:
    path = pack(tmp_path / "evil.zip", (*PATHS, name))
    with pytest.raises(DataError, match=r"evil\.zip: the entry '.*' points outside the zip"):
        scan(path)


def test_a_zip_that_is_packed_in_an_unusual_way_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "new.zip", PATHS, zipfile.ZIP_LZMA)
    with pytest.raises(DataError, match=r"a/dog/1\.png is packed in an unusual way; .*deflate"):
        scan(path)


def test_a_file_that_went_away_is_refused_by_name(tmp_path: Path) -> None:
    tree = scan(fill(tmp_path, PATHS))
    (tmp_path / "a/cat/10.jpg").unlink()
    with pytest.raises(DataError, match=r"a/cat/10\.jpg cannot be read \(No such file"):
        tree.read(tree.entries[0])


def test_folders_in_a_zip_of_windows_are_no_files(tmp_path: Path) -> None:
    tree = scan(pack(tmp_path / "all.zip", ("a\\dog\\1.png", "a\\dog\\", "a\\.x\\1.png")))
    assert [entry.path for entry in tree.entries] == ["a/dog/1.png"]
    assert tree.others == ()


def test_a_zip_without_its_domain_is_told_that_its_own_name_is_not_read(tmp_path: Path) -> None:
    pack(tmp_path / "photo.zip", ("dog/1.png",))
    wanted = (
        r"images lie at dog/1\.png of photo\.zip, but domain/class/image is expected, .* into a folder "
        r"named after their domain, and that folder into the zip, whose own name is not read$"
    )
    with pytest.raises(DataError, match=wanted):
        scan(tmp_path)


def test_what_lies_beside_a_wrapped_tree_is_told_without_the_wrapping(tmp_path: Path) -> None:
    fill(tmp_path / "data" / "kfold", (*PATHS, "a/dog/deep/1.png", "notes.txt"))
    (tmp_path / "data" / "kfold" / "a" / "horse").mkdir()
    tree = scan(tmp_path)
    assert tree.others == ("a/dog/deep/1.png", "a/horse/", "notes.txt")


def test_folders_around_several_trees_are_not_taken_away(tmp_path: Path) -> None:
    for tree in ("one", "other"):
        fill(tmp_path / "data" / tree, PATHS)
    with pytest.raises(DataError, match=r"images lie at data/(one|other)/.*, but domain/class"):
        scan(tmp_path)


def test_the_key_of_names_that_are_no_text_changes_with_them(tmp_path: Path) -> None:
    fill(tmp_path, PATHS)
    keys = {scan(tmp_path).key()}
    for name in (b"\xe9.png", b"\xe8.png"):
        odd = tmp_path / "a" / "dog" / os.fsdecode(name)
        odd.write_text("odd")
        os.utime(odd, ns=(1, 1))
        keys.add(scan(tmp_path).key())
        odd.unlink()
    assert len(keys) == 3


@pytest.mark.parametrize("inside", ["", "photo", "photo/dog"])
def test_a_folder_that_may_not_be_read_is_refused_by_its_own_name(
    tmp_path: Path, inside: str, close: Callable[[Path], None]
) -> None:
    """And not by that of a file which was only looked for there."""
    (tmp_path / "photo" / "dog").mkdir(parents=True)
    folder = tmp_path / inside
    close(folder)
    with pytest.raises(DataError, match=rf"^{folder}: cannot be searched \(Permission denied\)"):
        scan(tmp_path)
