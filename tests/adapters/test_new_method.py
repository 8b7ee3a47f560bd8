"""Adding a method is adding one file: the guide's example, put into the folder, is found everywhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from generalizeformer import adapters, catalog
from generalizeformer.benchmark.method_pages import UNKNOWN, methods_table
from generalizeformer.benchmark.records import read
from generalizeformer.cli.main import main

ROOT = Path(__file__).parents[2]
EXAMPLE = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.S)
# A folder that the package is told of too does what a file inside it does.
PLUGIN = """
def pytest_sessionstart(session):
    from generalizeformer import adapters
    adapters.__path__.append({folder!r})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    assert EXAMPLE is not None
    place = tmp_path / "more"
    place.mkdir()
    (place / "mine.py").write_text(EXAMPLE.group(1), "utf-8")
    monkeypatch.setattr(adapters, "__path__", [*adapters.__path__, str(place)])
    yield place
    sys.modules.pop("generalizeformer.adapters.mine", None)
    vars(adapters).pop("mine", None)


def test_the_catalogue_and_the_table_of_methods_have_it(folder: Path) -> None:
    assert "mine" in catalog.names("generalizeformer.adapters")
    row = next(row for row in methods_table().rows if row[0] == "mine")
    assert row[1] == "Authors, short title, where and when"
    assert row[-1] == "no"


def test_without_words_about_itself_it_is_a_method_all_the_same(folder: Path) -> None:
    text = (folder / "mine.py").read_text("utf-8")
    bare = re.sub(r"ABOUT = .*?\n\)\n", "", text, flags=re.S)
    assert bare != text
    (folder / "mine.py").write_text(bare, "utf-8")
    row = next(row for row in methods_table().rows if row[0] == "mine")
    assert set(row[1:-1]) == {UNKNOWN}


def test_the_command_line_and_the_evaluation_find_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    tiny = "--data synthetic --sources a b --held-out a --source-steps 2 --steps 2 --device cpu"
    main(["train", str(run), *tiny.split()])
    words = "--methods source mine --targets c --batch-sizes 20 --limit 40 --device cpu"
    main(["evaluate", str(run), *words.split()])
    plain, mine = read(run / "evaluation" / "records.json")
    assert (mine.method, mine.settings) == ("mine", {"temperature": 2.0})
    assert (mine.accuracy, mine.forwards) == (plain.accuracy, 1)
    assert mine.calibration_error != plain.calibration_error  # its temperature is at work
    capsys.readouterr()
    main(["methods"])
    assert "│ mine " in capsys.readouterr().out


def test_the_law_tests_run_on_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one_more_method.py").write_text(PLUGIN.format(folder=str(folder)), "utf-8")
    words = ["tests/adapters/test_laws.py", "-k", "mine", "-p", "one_more_method"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) >= 10
