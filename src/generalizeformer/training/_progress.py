"""How far a training from Python is, as one line of a terminal that is written over. Needs nothing but a stream."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from generalizeformer.training._loop import Metrics, Report

APART = 0.1  # seconds between two writings of a line
WIDTH = 79


@contextmanager
def shown() -> Iterator[Report | None]:
    """A report for training where standard error is a terminal, which it leaves at the beginning of a line."""
    from sys import stderr  # the present one: notebooks and tests bring their own

    if stderr is None or not stderr.isatty():
        yield None
        return
    line = _Line(stderr)
    try:
        yield line
    finally:
        line.end()


class _Line:
    """One line per stage: steps done, the latest validation, the time that is left."""

    def __init__(self, out: Any) -> None:
        self.out, self.stage, self.score = out, "", ""
        self.began, self.first, self.written = 0.0, 0, -APART

    def __call__(self, stage: str, done: int, steps: int, metrics: Metrics) -> None:
        now = time.monotonic()
        if stage != self.stage:
            self.end()
            self.stage, self.score = stage, ""
            self.began, self.first, self.written = now, done, -APART
        if "score" in metrics:
            self.score = f", validation {metrics['score']:.1f} %"
        if done < steps and now - self.written < APART:
            return
        self.written = now
        words = f"{stage}: {done} of {steps}{self.score}{self._left(now, done, steps)}"
        self.out.write(f"\r{words[:WIDTH]:<{WIDTH}}")
        self.out.flush()

    def _left(self, now: float, done: int, steps: int) -> str:
        """Once it can be told from a few steps."""
        if done - self.first < 3 or done == steps:
            return ""
        left = round((now - self.began) / (done - self.first) * (steps - done))
        return f", {left // 60}:{left % 60:02} left"

    def end(self) -> None:
        """Leaves the line as it is."""
        if self.stage:
            self.stage = ""
            self.out.write("\n")
            self.out.flush()
