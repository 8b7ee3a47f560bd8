"""The line of progress that a training from Python shows in a terminal."""

import io
from pathlib import Path
from typing import Any

import pytest

import generalizeformer
from generalizeformer import Recipe
from generalizeformer.training import _progress

from .test_own import META, domains, network


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "given", "told"),
    [
        (True, {}, ["meta: 2 of 2, validation"]),
        (True, {"report": None}, []),
        (False, {}, []),
    ],
)
def test_training_tells_in_a_terminal_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, given: Any, told: list[str]
) -> None:
    stream = Stream(terminal)
    monkeypatch.setattr("sys.stderr", stream)
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    generalizeformer.train(network(), domains("a"), tmp_path, recipe=recipe, **given)
    lines = stream.getvalue().split("\n")
    assert len(lines) == len(told) + 1
    assert all(words in line for words, line in zip(told, lines, strict=False))


def interrupted() -> None:
    with _progress.shown() as report:
        assert report is not None
        for done in range(1, 6):
            report("erm", done, 70, {"score": 50.0} if done == 2 else {})
        report("meta", 1, 9, {})
        raise KeyboardInterrupt


def test_a_line_is_written_over_and_every_stage_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, clock = Stream(True), iter(range(100))
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(_progress.time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    erm, meta, rest = stream.getvalue().split("\n")
    assert [line.rstrip() for line in erm.split("\r")[1:]] == [
        "erm: 1 of 70",
        "erm: 2 of 70, validation 50.0 %",
        "erm: 3 of 70, validation 50.0 %",
        "erm: 4 of 70, validation 50.0 %, 1:06 left",
        "erm: 5 of 70, validation 50.0 %, 1:05 left",
    ]
    assert len({len(line) for line in erm.split("\r")[1:]}) == 1  # what was longer is covered
    assert meta.rstrip() == "\rmeta: 1 of 9"
    assert rest == ""
