"""The house rules that a machine can check: sizes of files and functions, where printing and randomness may live."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "generalizeformer"
FILES = sorted(SOURCE.rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def functions(path: Path) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]


@pytest.mark.parametrize("path", FILES, ids=named)
def test_files_and_functions_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    for function in functions(path):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        lines = (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
        assert lines <= 40, f"{function.name} has {lines} lines without its signature and docstring"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_annotations_are_real_so_that_shapes_can_be_checked(path: Path) -> None:
    assert "from __future__ import annotations" not in path.read_text()


@pytest.mark.parametrize("path", [p for p in FILES if "cli" not in p.parts], ids=named)
def test_only_the_command_line_exits_or_reads_arguments(path: Path) -> None:
    imported = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert "sys" not in imported


@pytest.mark.parametrize("path", FILES, ids=named)
def test_modules_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "no docstring"
