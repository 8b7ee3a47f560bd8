"""Records: what one method did on one stream, as plain data that can be stored, merged and compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from generalizeformer import atomic
from generalizeformer.config import from_dict
from generalizeformer.data.streams import PLAIN, Stream, order_words
from generalizeformer.errors import DataError

ORACLE = "_oracle"  # ends the name of a method whose settings were picked with the target's labels


@dataclass(frozen=True, kw_only=True)
class Record:
    """One method on one stream of one trained model."""

    method: str
    targets: tuple[str, ...]  # more than one: they arrived in one stream
    batch_size: int
    seed: int  # of the stream's order
    run_seed: int  # of the training
    images: int
    accuracy: float  # percent, over all images
    by_target: dict[str, float]  # percent over all images of a target, however often it came
    seconds: float  # spent in the method alone
    settings: dict[str, Any] = field(default_factory=dict)  # of the method
    order: str = PLAIN  # of arrival
    order_settings: dict[str, Any] = field(default_factory=dict)
    stream: str = ""  # the stream's key; older records have none
    # Percent on source validation images, by domain: the plain source model's, and the method's after the stream.
    sources_before: dict[str, float] = field(default_factory=dict)
    sources_after: dict[str, float] = field(default_factory=dict)  # empty where not measured
    # Older records have none of these.
    by_class: dict[str, float] = field(default_factory=dict)  # percent over all images of a class
    calibration_error: float | None = None  # percent, from the softmax of the answers
    forwards: float | None = None  # images through a backbone, per image of the stream
    backwards: float | None = None  # the same for gradients on their way back
    # Bytes at the highest, above those before the method was built: its copies, its images, what libraries take to
    # work in and give back. Known of GPUs only. Methods without state are given many batches at once, so theirs is of
    # many batches.
    memory: int | None = None
    device: str = ""  # that it ran on, where a benchmark noted it
    commit: str | None = None  # of the code, likewise
    source: str = ""  # fingerprint of the source model's weights, likewise
    # Settings of the method's own training, where it has one.
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def class_accuracy(self) -> float | None:
        """Percent, mean over the classes that the stream held."""
        return mean(self.by_class.values()) if self.by_class else None

    @property
    def is_oracle(self) -> bool:
        """Whether labels of the target had a part in this number, so that no method may claim it."""
        return self.method.endswith(ORACLE)

    @property
    def setting(self) -> str:
        """A few words for the column this record belongs to."""
        return _setting(len(self.targets), self.batch_size, self.order, self.order_settings)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One method that could not serve the model, or the batches of a stream."""

    method: str
    targets: tuple[str, ...]
    setting: str  # the column it is missing from
    why: str  # the method's own words
    stream: str = ""  # its key
    commit: str | None = None  # of the code that refused, where a benchmark noted it


def refusal(method: str, stream: Stream, error: Exception) -> Refusal:
    """The error with which a method refused a stream, as data."""
    return Refusal(
        method=method,
        targets=stream.targets,
        setting=_setting(
            len(stream.targets), stream.batch_size, stream.order, dict(stream.settings)
        ),
        why=" ".join(str(error).split()),
        stream=stream.key(),
    )


def write(path: Path, records: Sequence[Record | Refusal]) -> None:
    """All of them in one file, which appears whole or not at all."""
    atomic.write_text(path, json.dumps([asdict(record) for record in records], indent=1) + "\n")


def read(path: Path) -> list[Record]:
    """The records of a file that `write` wrote."""
    try:
        return [from_dict(Record, entry) for entry in json.loads(path.read_text("utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: no readable records ({error}); run `evaluate` again") from None


def _setting(targets: int, batch_size: int, order: str, settings: Mapping[str, Any]) -> str:
    several = targets > 1
    kind = "mixed" if several else "single"
    if order != PLAIN:
        words = order_words(order, settings)
        kind = f"{words}, {targets} targets" if several else words
    return f"{kind}, batches of {batch_size}"
