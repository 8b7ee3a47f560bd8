"""What arrives in an evaluation: from flags, from a published scenario, or from stored files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from generalizeformer.cli._settings import settings_of_order
from generalizeformer.errors import DataError, UserError

if TYPE_CHECKING:
    from generalizeformer.data.domains import DomainDataset
    from generalizeformer.data.streams import Stream

USUAL_SIZES, USUAL_ORDER = (1, 20), "shuffled"
KEY_LENGTH = 16  # digits of a stream's key that name its file
Scenario = Literal[
    "continual_corruptions",
    "gradual_corruptions",
    "mixed_corruptions",
    "practical_corruptions",
    "gradual_rotation",
    "recurring",
    "correlated",
]

# What a scenario settles itself, and what else a stored stream does.
OF_A_SCENARIO = ("order", "order_settings", "single", "mixed")
OF_A_STREAM = ("scenario", "targets", "batch_sizes", "limit", "seed")


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """What arrives, and in which order.

    Args:
        targets: Target domains, also under a change, such as sketch@fog:5, sketch@rotation:30 or sketch@look:7;
            if none is named, all domains that the model has not learned from.
        batch_sizes: Images that arrive together. 1 20 if not given; a scenario's own.
        single: Let every target arrive by itself.
        mixed: Also let all targets arrive in one stream, in the largest batch size.
        order: Order of arrival: shuffled, in_turn, blocks, dirichlet, slots, by_class, imbalanced, label_shift,
            mixture, one_pass, recurring or target_shift; shuffled if not given.
        order_settings: Settings of the order, such as beta=1.0 for dirichlet.
        scenario: A published combination of changes and order instead, for every target.
        replay: Stored streams instead, files or folders of them (`evaluation/streams` of a run): the same images in
            the same order.
        limit: Images per stream; all if not given.
        seed: Of the order of arrival; 0 if not given.
    """

    targets: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] | None = None
    single: bool = True
    mixed: bool = True
    order: str | None = None
    order_settings: tuple[str, ...] = ()
    scenario: Scenario | None = None
    replay: tuple[Path, ...] = ()
    limit: int | None = None
    seed: int | None = None

    def check(self) -> None:
        """Raises where a flag was given that what else was asked for leaves no say."""
        if self.batch_sizes == ():
            raise DataError("batch sizes: none was given; give at least one, such as 20")
        if self.replay:
            self._alone("a stored stream", [*OF_A_SCENARIO, *OF_A_STREAM])
        if self.scenario is not None:
            self._alone("the scenario", OF_A_SCENARIO)

    def _alone(self, who: str, names: Sequence[str]) -> None:
        for name in names:
            if (value := getattr(self, name)) != getattr(Arrivals, name):
                raise UserError(
                    f"{_given(name, value)}, but {who} has its own; leave one of both out"
                )

    def stored(self) -> "list[Stream]":
        """The streams to replay; a folder stands for all that are in it."""
        from generalizeformer.data.arrivals import load, stored

        return [load(file) for path in self.replay for file in stored(path)]

    def streams(self, targets: Sequence[str]) -> "list[Stream]":
        """The streams of these targets, as their scenario or the flags say."""
        return self._ordered(targets) if self.scenario is None else self._staged(targets)

    def _ordered(self, targets: Sequence[str]) -> "list[Stream]":
        """Every target by itself in every batch size; then all of them in one stream, in the largest."""
        from generalizeformer.data.streams import Stream

        sizes = self.batch_sizes or USUAL_SIZES
        asked: list[tuple[tuple[str, ...], int]]
        asked = [((t,), b) for b in sizes for t in dict.fromkeys(targets) if self.single]
        if self.mixed and len(targets) > 1:
            asked.append((tuple(targets), max(sizes)))
        if not asked:
            raise DataError("streams: none is left; leave out --no-single, or name several targets")
        order, settings = self.order or USUAL_ORDER, settings_of_order(self.order_settings)
        how: dict[str, Any] = {"order": order, "settings": settings}
        return [Stream(names, size, self.seed or 0, self.limit, **how) for names, size in asked]

    def _staged(self, targets: Sequence[str]) -> "list[Stream]":
        """The scenario for every target, or with all of them together, as it is published; so is its batch size."""
        from generalizeformer.data import scenarios

        assert self.scenario is not None
        make = getattr(scenarios, self.scenario)
        published = signature(make).parameters
        subjects: Sequence[Any] = targets if "domain" in published else [tuple(targets)]
        own: int = published["batch_size"].default
        sizes = self.batch_sizes or (own,)
        made = [make(s, batch_size=b, seed=self.seed or 0) for b in sizes for s in subjects]
        return [replace(stream, limit=self.limit) for stream in made]


def _given(name: str, value: Any) -> str:
    """A flag and what it was given, as the command line has them."""
    if value is False:
        return f"no-{name}: given"
    words = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return f"{name.replace('_', ' ')}: got {words}"


def store(folder: Path, arrivals: "Sequence[Stream]", domains: "DomainDataset") -> None:
    """Every stream as a file under its key, so that it can be replayed anywhere; those of earlier ones go."""
    from generalizeformer.data.arrivals import save

    files = {folder / f"{stream.key()[:KEY_LENGTH]}.safetensors": stream for stream in arrivals}
    for file, stream in files.items():
        save(file, stream, domains)
    ours = f"{'[0-9a-f]' * KEY_LENGTH}.safetensors"  # files of other names are not ours to remove
    for file in folder.glob(ours):
        if file not in files:
            file.unlink()
