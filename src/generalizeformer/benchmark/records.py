"""Records: what one method did on one stream, as plain data that can be stored, merged and compared."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from generalizeformer import atomic
from generalizeformer.config import from_dict
from generalizeformer.data.streams import PLAIN, order_words
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

    @property
    def is_oracle(self) -> bool:
        """Whether labels of the target had a part in this number, so that no method may claim it."""
        return self.method.endswith(ORACLE)

    @property
    def setting(self) -> str:
        """A few words for the column this record belongs to."""
        several = len(self.targets) > 1
        kind = "mixed" if several else "single"
        if self.order != PLAIN:
            words = order_words(self.order, self.order_settings)
            kind = f"{words}, {len(self.targets)} targets" if several else words
        return f"{kind}, batches of {self.batch_size}"


def write(path: Path, records: list[Record]) -> None:
    """All records in one file, which appears whole or not at all."""
    atomic.write_text(path, json.dumps([asdict(record) for record in records], indent=1) + "\n")


def read(path: Path) -> list[Record]:
    """The records of a file that `write` wrote."""
    try:
        return [from_dict(Record, entry) for entry in json.loads(path.read_text("utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: no readable records ({error}); run `evaluate` again") from None
