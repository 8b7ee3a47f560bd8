"""What is left of the sources after a target stream."""

from typing import Any

import pytest
import torch
from torch import Tensor

from generalizeformer import catalog
from generalizeformer.benchmark import runner
from generalizeformer.benchmark.runner import ADAPTERS, arriving, build_adapter, compare, run
from generalizeformer.data.streams import Stream

from .toys import dataset, taught

STREAM = Stream(("a",), 4, 0)
EVEN = Stream(("a",), 7, 0)  # no batch of one image is left over, which some methods refuse


def plain(name: str) -> float:
    model, domain = taught(), dataset()[name]
    answers = model.backbone.eval()(model.card.preprocessing(domain.images)).argmax(1)
    return 100 * (answers == domain.labels).float().mean().item()


@pytest.mark.parametrize("method", catalog.names(ADAPTERS))
def test_before_is_the_plain_accuracy_whatever_the_method(method: str) -> None:
    record = run(taught(), dataset(), method, EVEN, 0, sources=dataset())
    assert record.sources_before == pytest.approx({"a": plain("a"), "b": plain("b")})
    assert record.sources_before["a"] != record.sources_before["b"]
    assert record.sources_after.keys() == {"a", "b"}


def test_the_source_itself_forgets_nothing() -> None:
    record = run(taught(), dataset(), "source", STREAM, 0, sources=dataset())
    assert record.sources_after == record.sources_before


def test_a_limited_stream_asks_for_no_more_of_each_source_and_shares_no_answers_with_others() -> (
    None
):
    asked: list[tuple[tuple[str, ...], int]] = []

    def read(source: Any, domains: Any, stream: Stream, together: int) -> Any:
        for arrival in arriving(source, domains, stream, together):
            asked.append((stream.targets, len(arrival.images)))
            yield arrival

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner._score, "__defaults__", (read,))
        limited, whole = compare(
            *(taught(), dataset(), ["source"], [Stream(("a",), 4, 0, limit=6), STREAM], 0),
            sources=dataset(),
        )
    count = sum(number for targets, number in asked if targets == ("b",))
    assert count == 2 * 6 + 2 * len(dataset()["b"])  # before and after each stream
    assert whole.sources_before == pytest.approx({"a": plain("a"), "b": plain("b")})
    assert limited.sources_before != whole.sources_before


def test_without_sources_nothing_is_measured_and_nothing_else_changes() -> None:
    for method in catalog.names(ADAPTERS):
        without = run(taught(), dataset(), method, EVEN, 0)
        assert (without.sources_before, without.sources_after) == ({}, {})
        measured = run(taught(), dataset(), method, EVEN, 0, sources=dataset())
        assert measured.by_target == without.by_target


@pytest.mark.parametrize("method", ["tent", "t3a"])
def test_after_is_answered_with_what_the_stream_taught_and_teaches_nothing(method: str) -> None:
    model, data = taught(), dataset()
    settings: dict[str, Any] = {"tent": {"learning_rate": 0.05, "steps": 3}, "t3a": {"supports": 2}}
    record = run(model, data, method, STREAM, 0, settings, sources=data)
    adapter, _ = build_adapter(method, model, **settings[method])
    for batch in STREAM.chunks(data, 1):
        adapter.step(model.card.preprocessing(batch.images))
    for name in data.names:
        right = []
        for batch in Stream((name,), 4, 0).chunks(data, 1):
            answers = adapter.predict(model.card.preprocessing(batch.images)).argmax(1)
            right.append(answers == batch.truth.labels)
        expected = 100 * torch.cat(right).float().mean().item()
        assert record.sources_after[name] == pytest.approx(expected)
    assert record.sources_after != record.sources_before  # or nothing was tested


def test_only_the_target_stream_is_learned_from_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Counting:
        steps, predictions = 0, 0

        def step(self, images: Tensor) -> Tensor:
            self.steps += 1
            return self._answer(images)

        def predict(self, images: Tensor) -> Tensor:
            self.predictions += 1
            return self._answer(images)

        def reset(self) -> None: ...

        def _answer(self, images: Tensor) -> Tensor:
            assert len(images) <= 4
            clock[0] += 1.0
            return torch.zeros(len(images), 3)

    adapter, build = Counting(), runner.build_adapter
    chosen = lambda name, *rest: build(name, *rest) if name == "source" else (adapter, {})  # noqa: E731
    monkeypatch.setattr(runner, "build_adapter", chosen)
    monkeypatch.setattr(runner.time, "perf_counter", lambda: clock[0])
    record = run(taught(), dataset(), "stub", STREAM, 0, sources=dataset())
    assert (adapter.steps, adapter.predictions) == (6, 12)
    assert record.seconds == 6


def test_in_a_comparison_the_plain_model_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built, build = list[str](), runner.build_adapter

    def counting(name: str, *rest: Any, **settings: Any) -> Any:
        built.append(name)
        return build(name, *rest, **settings)

    monkeypatch.setattr(runner, "build_adapter", counting)
    methods = ["t3a", "tent"]
    records = compare(taught(), dataset(), methods, [STREAM], 0, sources=dataset())
    assert built == ["t3a", "source", "tent"]
    for record in records:
        alone = run(taught(), dataset(), record.method, STREAM, 0, sources=dataset())
        assert record.sources_before == alone.sources_before
        assert record.sources_after == alone.sources_after
