"""An end to the work of a benchmark: what is not finished by then is left for the next time."""

import time
from dataclasses import dataclass

from generalizeformer.training._loop import Metrics, Report


class OutOfTimeError(Exception):
    """Everything that is stored stays: the same command goes on from there."""


@dataclass(frozen=True)
class TimeLimit:
    """Looked at after every step of a training and after every record; a search for settings is not cut short."""

    end: float  # of time.monotonic(), which all processes of a machine share

    @classmethod
    def of(cls, minutes: float) -> "TimeLimit":
        return cls(time.monotonic() + 60 * minutes)

    def check(self) -> None:
        if time.monotonic() >= self.end:
            raise OutOfTimeError

    def watched(self, report: Report | None = None) -> Report:
        """The report, which raises OutOfTimeError once the end has come."""

        def watch(stage: str, done: int, total: int, metrics: Metrics) -> None:
            if report is not None:
                report(stage, done, total, metrics)
            self.check()

        return watch
