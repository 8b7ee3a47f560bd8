"""What arrives in an evaluation, as flags, scenarios and stored files say."""

import pytest

from generalizeformer.cli._streams import Arrivals


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
    given: dict[str, object], expected: list[int]
) -> None:
    assert sizes(Arrivals(**given)) == expected  # type: ignore[arg-type]
