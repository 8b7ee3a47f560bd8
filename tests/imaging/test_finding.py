import os
from collections.abc import Callable
from pathlib import Path

import pytest

from generalizeformer.errors import DataError
from generalizeformer.imaging.finding import find_images, left_out

Close = Callable[[Path], None]


def test_folders_are_searched_in_a_stable_order(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "folder.png").mkdir()
    for name in ("b.PNG", "a.jpg", "deep/er/c.webp", "d.gif", "e.jpeg"):
        (tmp_path / name).write_bytes(b"any")
    (tmp_path / "notes.txt").write_text("no picture")
    names = [str(path.relative_to(tmp_path)) for path in find_images([tmp_path])]
    assert names == ["a.jpg", "b.PNG", "d.gif", "deep/er/c.webp", "e.jpeg"]


def test_named_files_keep_their_order_and_need_no_ending(tmp_path: Path) -> None:
    files = [tmp_path / "z.dat", tmp_path / "a.png"]
    for file in files:
        file.write_bytes(b"")
    assert find_images(files) == files


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing: no such file or folder; check the path"):
        find_images([tmp_path / "nothing"])
    with pytest.raises(DataError, match=r"no images in this folder; images end in \.jpg"):
        find_images([tmp_path])
    (tmp_path / "a.bmp").write_bytes(b"BM")
    with pytest.raises(DataError, match=r"no images .*; convert others, such as a\.bmp, to png"):
        find_images([tmp_path])
    with pytest.raises(DataError, match="name at least one"):
        find_images([])


def test_folders_that_may_not_be_read_are_refused_by_name(tmp_path: Path, close: Close) -> None:
    """Also where nothing else is there: nobody knows that there are no images."""
    inside = tmp_path / "pictures" / "inside"
    inside.mkdir(parents=True)
    close(inside)
    words = r"inside: cannot be searched \(Permission denied\); check that you may read it"
    with pytest.raises(DataError, match=words):
        find_images([tmp_path / "pictures"])
    with pytest.raises(DataError, match=words):
        find_images([inside])


def test_who_hears_of_a_closed_folder_may_go_on(tmp_path: Path, close: Close) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.png").write_bytes(b"any")
    (tmp_path / "b.bmp").write_bytes(b"any")
    close(tmp_path / "closed")
    heard: list[str] = []
    assert find_images([tmp_path, tmp_path / "closed"], heard.append) == [tmp_path / "a.png"]
    assert [words.partition(":")[0] for words in heard] == [str(tmp_path / "closed")] * 2
    assert left_out([tmp_path]) == [tmp_path / "b.bmp"]


def test_a_link_to_nothing_is_found_and_what_is_no_file_is_not(tmp_path: Path) -> None:
    """Whoever reads the link is told that there is nothing; what is never found is never missed."""
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.png")
    assert find_images([tmp_path]) == [tmp_path / "gone.png"]
