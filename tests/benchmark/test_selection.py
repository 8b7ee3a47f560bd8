from typing import Any

import pytest

from generalizeformer.benchmark import selection
from generalizeformer.benchmark.runner import run
from generalizeformer.benchmark.selection import best_in_hindsight, choose, grid, scores
from generalizeformer.data.streams import Stream
from generalizeformer.errors import DataError, UserError

from .toys import dataset, record, source, taught


@pytest.fixture
def accuracies(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs are replaced by given accuracies, by the number of supports."""
    asked: list[tuple[Any, ...]] = []

    def place(by_supports: dict[int | None, dict[str, float]]) -> list[tuple[Any, ...]]:
        def fake(
            model: Any, data: Any, method: str, stream: Stream, seed: int, given: Any, *_: Any
        ) -> Any:
            asked.append((data.names, stream, given))
            supports = given[method]["supports"]
            return record(accuracy=by_supports.get(supports, {}).get(stream.targets[0], 0.0))

        monkeypatch.setattr(selection, "run", fake)
        return asked

    return place


def test_the_best_mean_over_the_domains_is_chosen(accuracies: Any) -> None:
    accuracies({1: {"a": 90.0, "b": 0.0}, 20: {"a": 50.0, "b": 60.0}})
    asked = (source(), dataset(), "t3a", 4, 0)
    assert choose(*asked) == {"supports": 20}
    assert scores(*asked) == [0.0, 45.0, 0.0, 55.0, 0.0, 0.0]


def test_ties_go_to_the_earlier_entry(accuracies: Any) -> None:
    accuracies({})
    assert choose(source(), dataset(), "t3a", 4, 0) == grid("t3a")[0]
    accuracies({50: {"a": 50.0}, 5: {"a": 20.0, "b": 30.0}})
    assert choose(source(), dataset(), "t3a", 4, 0) == {"supports": 5}


def test_every_entry_meets_every_domain_in_a_stream_of_its_own(accuracies: Any) -> None:
    asked = accuracies({})
    choose(source(), dataset(), "t3a", 4, 7, limit=9)
    streams = [Stream((name,), 4, 7, 9) for name in ("a", "b")]
    assert asked == [
        (("a", "b"), stream, {"t3a": entry}) for entry in grid("t3a") for stream in streams
    ]


def test_the_score_is_that_of_the_runs() -> None:
    model, data = taught(), dataset()
    told = scores(model, data, "alpha_bn", 5, 3)
    streams = [Stream((name,), 5, 3) for name in data.names]
    for settings, score in zip(grid("alpha_bn"), told, strict=True):
        found = [run(model, data, "alpha_bn", s, 0, {"alpha_bn": settings}) for s in streams]
        assert score == pytest.approx(sum(r.accuracy for r in found) / 2)
    assert len(set(told)) > 1  # or nothing was chosen
    assert choose(model, data, "alpha_bn", 5, 3) == grid("alpha_bn")[told.index(max(told))]


def test_a_method_without_a_grid_has_its_defaults() -> None:
    assert grid("source") == ({},)
    assert choose(source(), dataset(), "source", 4, 0) == {}


def test_an_unknown_method_is_told() -> None:
    with pytest.raises(UserError, match="there is no 'tend'; did you mean 'tent'"):
        grid("tend")


def test_hindsight_is_marked_as_an_oracle_and_takes_the_first_of_equals() -> None:
    candidates = [
        record(method="tent", accuracy=a, settings={"steps": number})
        for number, a in enumerate((40.0, 60.0, 60.0))
    ]
    best = best_in_hindsight(candidates)
    assert (best.method, best.accuracy, best.settings) == ("tent_oracle", 60.0, {"steps": 1})
    assert best.is_oracle
    assert not candidates[1].is_oracle


@pytest.mark.parametrize(
    "records", [[], [record(), record(method="tent")], [record(), record(run_seed=1)]]
)
def test_hindsight_over_what_cannot_be_compared_is_refused(records: Any) -> None:
    with pytest.raises(DataError, match="give those of one method on one stream"):
        best_in_hindsight(records)
