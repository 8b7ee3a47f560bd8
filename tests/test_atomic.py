import subprocess
import sys
from pathlib import Path

import pytest

from generalizeformer.atomic import LONGEST, alone, file_name, replacing, write_text


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
