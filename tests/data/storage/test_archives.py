import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.data.storage.archives import check_archive, unpack

FILES = {
    "kfold/art/dog/1.jpg": b"a dog" * 300,
    "kfold/art/cat/2.jpg": b"a cat" * 300,
    "note.txt": b"",
}


def zipped(path: Path, files: dict[str, bytes] = FILES) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, files: dict[str, bytes] = FILES) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        folder = tarfile.TarInfo("kfold")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def special(path: Path, kind: bytes) -> Path:
    """A tar with one entry that is no file."""
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("dog.jpg")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    return path


def made(folder: Path, ending: str, files: dict[str, bytes] = FILES) -> Path:
    path = folder / f"archive{ending}"
    return zipped(path, files) if ending == ".zip" else tarred(path, files)


def inside(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


every_kind = pytest.mark.parametrize("ending", [".zip", ".tar", ".tar.gz"])


@every_kind
def test_what_was_packed_comes_out_again(tmp_path: Path, ending: str) -> None:
    seen: list[tuple[int, int]] = []
    count = unpack(
        made(tmp_path, ending), tmp_path / "tree", lambda done, of: seen.append((done, of))
    )
    assert count == 3
    assert inside(tmp_path / "tree") == FILES
    assert seen == [(1, 3), (2, 3), (3, 3)]


@every_kind
def test_the_folder_that_is_meant_takes_the_final_name(tmp_path: Path, ending: str) -> None:
    unpack(made(tmp_path, ending), tmp_path / "tree", choose=lambda folder: folder / "kfold")
    assert set(inside(tmp_path / "tree")) == {"art/dog/1.jpg", "art/cat/2.jpg"}
    assert {path.name for path in tmp_path.iterdir()} == {"tree", f"archive{ending}"}


@every_kind
@pytest.mark.parametrize(
    "name", ["../evil", "/abs", "a/../../evil", "..\\evil", "C:\\evil", "\\\\host\\evil"]
)
def test_entries_that_point_outside_are_refused_before_anything_is_written(
    tmp_path: Path, ending: str, name: str
) -> None:
    path = made(tmp_path, ending, {"good.jpg": b"good", name: b"evil"})
    with pytest.raises(ValueError, match=r"holds '.*(evil|abs)', which points outside the folder"):
        unpack(path, tmp_path / "below" / "tree")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.FIFOTYPE, "device"),
    ],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes, word: str) -> None:
    path = special(tmp_path / "archive.tar", kind)
    with pytest.raises(ValueError, match=f"holds the {word} 'dog.jpg', and only plain files are"):
        unpack(path, tmp_path / "tree")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mode", "word"), [(stat.S_IFLNK, "link"), (stat.S_IFIFO, "device")])
def test_links_and_devices_in_a_zip_are_refused(tmp_path: Path, mode: int, word: str) -> None:
    info = zipfile.ZipInfo("dog.jpg")
    info.create_system, info.external_attr = 3, (mode | 0o777) << 16
    path = tmp_path / "archive.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(ValueError, match=f"holds the {word} 'dog.jpg'"):
        unpack(path, tmp_path / "tree")


@every_kind
@settings(deadline=None, max_examples=25)
@given(share=st.floats(0, 0.95))
def test_an_archive_cut_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, ending: str, share: float
) -> None:
    path = made(tmp_path_factory.mktemp("cut"), ending)
    content = path.read_bytes()
    # The last 8 KiB of a tar are empty blocks that mean nothing.
    meant = len(content) if ending != ".tar" else len(content.rstrip(b"\0"))
    path.write_bytes(content[: int(meant * share)])
    with pytest.raises(ValueError, match="fetch it again"):
        check_archive(path)


def test_a_tar_cut_between_two_entries_is_refused(tmp_path: Path) -> None:
    path = tarred(tmp_path / "archive.tar")
    path.write_bytes(path.read_bytes()[: 512 + 512 + 1536])  # the folder, and the first image
    with pytest.raises(ValueError, match=r"this archive is broken \(it ends early"):
        check_archive(path)


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_a_changed_byte_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"archive{ending}"
    content = bytearray(made(tmp_path, ending).read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"this archive is broken \(.+\); delete the file and"):
        check_archive(path)


def test_the_md5_is_compared_where_it_is_known(tmp_path: Path) -> None:
    path = zipped(tmp_path / "archive.zip")
    assert check_archive(path, hashlib.md5(path.read_bytes()).hexdigest()) == 3
    with pytest.raises(ValueError, match=r"its md5 is [0-9a-f]{32}, and the published one is 00;"):
        check_archive(path, "00")


def test_a_web_page_is_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "archive.zip"
    path.write_text("<html>Too many people have fetched this file</html>")
    with pytest.raises(ValueError, match=r"neither a zip nor a tar archive, perhaps a web page"):
        check_archive(path)


def test_an_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such archive"):
        check_archive(tmp_path / "archive.zip")


def test_a_zip_with_a_password_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "archive.zip")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    content[6] |= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"this archive is broken .*password"):
        check_archive(path)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="there is something here already"):
        unpack(zipped(tmp_path / "archive.zip"), tmp_path / "tree")
    assert inside(tmp_path / "tree") == {"mine.txt": b"mine"}


def test_an_empty_folder_and_what_a_killed_run_left_are_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / ".tree.partial").mkdir()
    (tmp_path / ".tree.partial" / "half.jpg").write_bytes(b"half")
    unpack(zipped(tmp_path / "archive.zip"), tmp_path / "tree")
    assert inside(tmp_path / "tree") == FILES


def test_a_run_that_stops_halfway_leaves_no_tree(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(zipped(tmp_path / "archive.zip"), tmp_path / "tree", stop)
    assert [path.name for path in tmp_path.iterdir()] == ["archive.zip"]
