"""What methods say of themselves: every one does, the page is made of it, and what it says can be found."""

import ast
import re
from pathlib import Path

import pytest
from recordings import TRACES

from generalizeformer import catalog
from generalizeformer.adapters._about import About
from generalizeformer.benchmark.method_pages import (
    AT_ONCE,
    methods_page,
    methods_table,
    short_table,
)
from generalizeformer.errors import UserError

METHODS = "generalizeformer.adapters"
NAMES = catalog.names(METHODS)
ROOT = Path(__file__).parents[2]
WORDS = {
    "paper": "a",
    "moves": "b",
    "batch_norm": "c",
    "keeps": "d",
    "answers": "e",
    "reference": "f",
    "needs": "g",
}


def test_the_page_is_what_the_code_makes() -> None:
    page = (ROOT / "docs" / "methods.md").read_text("utf-8")
    assert page == methods_page(), "run: generalizeformer methods --markdown docs/methods.md"


@pytest.mark.parametrize("name", NAMES)
def test_every_method_says_what_it_is(name: str) -> None:
    about = catalog.load(METHODS, name).ABOUT
    assert isinstance(about, About)
    row = next(line for line in methods_page().splitlines() if line.startswith(f"| `{name}` |"))
    assert all(f"| {words} |" in row for words in vars(about).values())


@pytest.mark.parametrize("name", NAMES)
def test_what_a_method_was_checked_against_is_there(name: str) -> None:
    reference = catalog.load(METHODS, name).ABOUT.reference
    table = (TRACES / "README.md").read_text("utf-8")
    for part in reference.split("; "):
        found = re.fullmatch(r"([\w-]+/[\w-]+)(?: \(\w+\))?, trace (\w+)", part)
        if found is None:
            assert re.fullmatch(r"none|no trace of [\w-]+/[\w-]+", part)
            continue
        repository, trace = found.groups()
        assert (TRACES / f"{trace}.safetensors").exists()
        assert f"`{trace}.safetensors`" in table
        assert f"| {repository} @ " in table


def test_every_recording_is_in_the_table_of_recordings() -> None:
    table = (TRACES / "README.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `(\w+)\.safetensors`", table, re.M))
    assert listed == {path.stem for path in TRACES.glob("*.safetensors")}


def test_whether_batches_go_together_is_found_not_told() -> None:
    table = methods_table()
    column = table.columns.index(AT_ONCE)
    found = {row[0]: row[column] for row in table.rows}
    assert found.keys() == set(NAMES)
    assert (found["source"], found["generalizeformer"]) == ("yes", "yes")
    assert (found["tent"], found["t3a"]) == ("no", "no")
    assert [row[-1] for row in short_table().rows] == list(found.values())


@pytest.mark.parametrize("words", ["", "two\nlines", "a | b", " spaced"])
def test_words_that_would_break_the_table_are_refused(words: str) -> None:
    with pytest.raises(UserError, match=r"about: moves is .*; give a few words in one line"):
        About(**(WORDS | {"moves": words}))


def imported(path: Path) -> set[str]:
    """The files of the adapters folder that this one imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == METHODS:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{METHODS}."):
            found.add((node.module or "").split(".")[2])
        elif isinstance(node, ast.Import):
            inside = [a.name.split(".") for a in node.names if a.name.startswith(f"{METHODS}.")]
            found |= {parts[2] for parts in inside}
    return found


def test_no_file_of_the_folder_leans_on_a_method() -> None:
    """By no file's name, so that it holds for new ones too: neither methods nor machinery import a method."""
    files = sorted((ROOT / "src" / "generalizeformer" / "adapters").glob("*.py"))
    leaning = {path.name: imported(path) & set(NAMES) for path in files}
    assert {name: methods for name, methods in leaning.items() if methods} == {}
    assert imported(Path(__file__)) == {"_about"}  # or nothing was tested
