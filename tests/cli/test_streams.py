"""What arrives in an evaluation, as flags, scenarios and stored files say."""

from pathlib import Path
from typing import Any

import pytest

from generalizeformer.cli._streams import Arrivals, store
from generalizeformer.data.datasets import synthetic
from generalizeformer.data.streams import Stream
from generalizeformer.errors import UserError


def sizes(arrivals: Arrivals) -> list[int]:
    return list(dict.fromkeys(stream.batch_size for stream in arrivals.streams(["a", "b"])))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [1, 20]),
        ({"batch_sizes": (7,)}, [7]),
        ({"scenario": "continual_corruptions"}, [64]),
        ({"scenario": "recurring"}, [20]),
        ({"scenario": "continual_corruptions", "batch_sizes": (3, 5)}, [3, 5]),
    ],
)
def test_a_scenario_has_its_published_batch_size_unless_another_is_given(
    given: dict[str, Any], expected: list[int]
) -> None:
    assert sizes(Arrivals(**given)) == expected


SCENARIO = {"scenario": "recurring"}
REPLAY = {"replay": (Path("a.safetensors"),)}


@pytest.mark.parametrize(
    ("asked", "given", "expected"),
    [
        (SCENARIO, {"order": "shuffled"}, "order: got shuffled, but the scenario has its own"),
        (SCENARIO, {"order_settings": ("a=1", "b=2")}, "order settings: got a=1 b=2, but the scen"),
        (SCENARIO, {"single": False}, "no-single: given, but the scenario has its own; leave one"),
        (SCENARIO, {"mixed": False}, "no-mixed: given, but the scenario has its own; leave one of"),
        (
            REPLAY,
            {"order": "slots"},
            "order: got slots, but a stored stream has its own; leave one",
        ),
        (REPLAY, {"order_settings": ("a=1",)}, "order settings: got a=1, but a stored stream has"),
        (REPLAY, {"single": False}, "no-single: given, but a stored stream has its own; leave one"),
        (REPLAY, {"mixed": False}, "no-mixed: given, but a stored stream has its own; leave one"),
        (REPLAY, {"targets": ("a", "b@fog:1")}, "targets: got a b@fog:1, but a stored stream has"),
        (REPLAY, {"batch_sizes": (1, 20)}, "batch sizes: got 1 20, but a stored stream has its"),
        (REPLAY, {"limit": 0}, "limit: got 0, but a stored stream has its own; leave one of both"),
        (REPLAY, {"seed": 0}, "seed: got 0, but a stored stream has its own; leave one of both"),
        (REPLAY, SCENARIO, "scenario: got recurring, but a stored stream has its own; leave one"),
    ],
)
def test_a_flag_that_would_be_ignored_is_refused(
    asked: dict[str, Any], given: dict[str, Any], expected: str
) -> None:
    Arrivals(**asked).check()
    with pytest.raises(UserError) as told:
        Arrivals(**asked, **given).check()
    assert str(told.value).startswith(expected)


def test_a_scenario_leaves_all_else_to_the_flags() -> None:
    given: dict[str, Any] = {"targets": ("a",), "batch_sizes": (3,), "limit": 5, "seed": 2}
    (made := Arrivals(scenario="recurring", **given)).check()
    (stream,) = made.streams(made.targets)
    assert (stream.batch_size, stream.limit, stream.seed) == (3, 5, 2)


def test_streams_of_earlier_evaluations_make_way_and_other_files_stay(tmp_path: Path) -> None:
    domains = synthetic.build(synthetic.Config(domains=2, per_class=4))

    def kept(*seeds: int) -> set[str]:
        streams = [Stream(("a",), 4, seed) for seed in seeds]
        store(tmp_path, streams, domains)
        return {f"{stream.key()[:16]}.safetensors" for stream in streams}

    assert kept(0, 1) == {path.name for path in tmp_path.iterdir()}
    mine = {"mine.safetensors", "0123456789abcdef.txt"}
    for name in mine:
        (tmp_path / name).touch()
    expected = kept(1, 2)
    assert {path.name for path in tmp_path.iterdir()} == expected | mine
