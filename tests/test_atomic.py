import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from generalizeformer import atomic
from generalizeformer.atomic import LONGEST, STALE, alone, file_name, replacing, write_text


def test_text_is_written_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_text(path, "φ")
    write_text(path, "θ")
    assert path.read_text("utf-8") == "θ"
    assert list(path.parent.iterdir()) == [path]


def test_what_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def fail() -> None:
        with replacing(path) as partial:
            partial.write_text("ne")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writers_of_one_file_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    with replacing(path) as mine:
        mine.write_text("mi")
        for target, words in ((write_text, (path, "another thread's")), (in_a_process, (path,))):
            other = threading.Thread(target=target, args=words)
            other.start()
            other.join()
            assert path.read_text() == ("another process's" if target is in_a_process else words[1])
            assert mine.read_text() == "mi"
        mine.write_text("mine")
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def in_a_process(path: Path) -> None:
    words = "from generalizeformer.atomic import write_text; from pathlib import Path; import sys\n"
    words += "write_text(Path(sys.argv[1]), 'another process\\'s')"
    subprocess.run([sys.executable, "-c", words, str(path)], check=True)


def test_what_killed_writers_leave_is_taken_away_a_day_later(tmp_path: Path) -> None:
    path = tmp_path / "f[1].txt"
    old, young = (tmp_path / f".f[1].txt.{number}-2.partial" for number in (1, 3))
    others = [tmp_path / name for name in (".f1.txt.1-2.partial", "f[1].txt.1-2.partial")]
    for left in (old, young, *others):
        left.write_text("half")
    for left in (old, *others):
        os.utime(left, (0, time.time() - STALE - 60))
    write_text(path, "whole")
    assert {*tmp_path.iterdir()} == {path, young, *others}


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "x" * 251 + ".txt"])
def test_the_longest_names_can_be_written(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "φ")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_second_process_waits_until_the_first_is_no_longer_alone(tmp_path: Path) -> None:
    words = "from generalizeformer.atomic import alone; from pathlib import Path; import sys\n"
    words += "with alone(Path(sys.argv[1])): Path(sys.argv[1], 'been').touch()"
    with alone(tmp_path):
        other = subprocess.Popen([sys.executable, "-c", words, str(tmp_path)])
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.0)
        assert not (tmp_path / "been").exists()
    assert other.wait(60) == 0
    assert (tmp_path / "been").exists()


class NoLocks:
    """A disk that refuses to lock."""

    LOCK_EX = 2

    def flock(self, *_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("locks", [None, NoLocks()])
def test_without_locks_work_goes_on_and_errors_of_it_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: object
) -> None:
    monkeypatch.setattr(atomic, "fcntl", locks)
    with alone(tmp_path / "new"):
        write_text(tmp_path / "new" / "done", "")
    assert (tmp_path / "new" / "done").exists()
    with pytest.raises(OSError, match="the work's own"), alone(tmp_path):
        raise OSError("the work's own")


def test_words_are_file_names_as_they_are_unless_they_are_too_long(tmp_path: Path) -> None:
    for words in ("erm-a+b", "x" * LONGEST, "艺" * (LONGEST // 3)):
        assert file_name(words) == words
    long = ["x" * 201, "x" * 200 + "y", "艺" * 67, "艺" * 300]
    short = [file_name(words) for words in long]
    assert len(set(short)) == 4
    for words, name in zip(long, short, strict=True):
        assert len(name.encode()) < 100
        assert name.startswith(words[:20])
        write_text(tmp_path / f"{name}.state", "")
