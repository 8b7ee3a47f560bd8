from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from generalizeformer import catalog
from generalizeformer.benchmark import runner
from generalizeformer.benchmark.runner import ADAPTERS, build_adapter, compare, run
from generalizeformer.data.streams import Stream
from generalizeformer.errors import UserError

from .toys import dataset, source

SINGLE, MIXED = Stream(("a",), 4, 0), Stream(("a", "b"), 4, 0)


@dataclass(frozen=True, kw_only=True)
class NoConfig:
    pass


class Stepping:
    """Remembers all it is given, and always answers class 0."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []

    def step(self, *given: Any) -> Tensor:
        self.given.append(given)
        return torch.eye(3)[torch.zeros(len(given[0]), dtype=torch.long)]

    predict = step

    def reset(self) -> None: ...


class Grouped(Stepping):
    def predict_groups(self, *given: Any) -> Tensor:
        return self.step(*given)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Any:
    def place(adapter: Stepping) -> list[tuple[Any, ...]]:
        module = SimpleNamespace(Config=NoConfig, build=lambda *_: adapter)
        monkeypatch.setattr(runner.catalog, "load", lambda *_: module)
        return adapter.given

    return place


@pytest.mark.parametrize("stream", [SINGLE, MIXED, Stream(("b",), 5, 3, limit=12)])
def test_accuracy_is_a_plain_count(stream: Stream) -> None:
    data, model = dataset(), source()
    record = run(model, data, "source", stream, run_seed=9)
    right: dict[str, list[bool]] = {name: [] for name in stream.targets}
    for domain, image in stream.order(data).tolist():
        pixels = data.domains[domain].images[image : image + 1]
        answer = model.backbone.eval()(model.card.preprocessing(pixels)).argmax().item()
        right[data.names[domain]].append(answer == data.domains[domain].labels[image].item())
    everything = [answer for answers in right.values() for answer in answers]
    assert record.images == len(everything)
    assert record.accuracy == pytest.approx(100 * sum(everything) / len(everything))
    assert record.by_target == pytest.approx({n: 100 * sum(a) / len(a) for n, a in right.items()})
    assert (record.method, record.targets, record.run_seed) == ("source", stream.targets, 9)
    assert 20 < record.accuracy < 80  # or nothing was tested
    assert record.seconds > 0


@pytest.mark.parametrize("method", ["source", "generalizeformer"])
def test_many_batches_at_once_and_one_by_one_agree(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = source(), dataset()
    together = run(model, data, method, MIXED, 0)
    monkeypatch.setattr(runner, "TOGETHER", 1)  # one batch at a time
    assert run(model, data, method, MIXED, 0).by_target == together.by_target

    class ByStep:
        """The same method, but without the call for many batches."""

        def __init__(self, adapter: Any) -> None:
            self.step, self.predict, self.reset = adapter.step, adapter.predict, adapter.reset

    build = runner.build_adapter
    monkeypatch.setattr(runner, "build_adapter", lambda *a: (ByStep(build(*a)[0]), {}))
    assert run(model, data, method, MIXED, 0).by_target == together.by_target


@pytest.mark.parametrize("stream", [SINGLE, MIXED])
def test_a_method_that_learns_is_given_one_batch_of_images_at_a_time(
    stub: Any, stream: Stream
) -> None:
    given = stub(Stepping())
    model, data = source(), dataset()
    run(model, data, "stub", stream, 0)
    batches = list(stream.batches(data))
    assert [len(images) for (images,) in given] == [len(batch.images) for batch in batches]
    for (images,), batch in zip(given, batches, strict=True):
        assert torch.equal(images, model.card.preprocessing(batch.images))


def test_a_method_without_state_is_given_images_and_group_ids_only(stub: Any) -> None:
    given = stub(Grouped())
    data = dataset()
    run(source(), data, "stub", MIXED, 0)
    assert len(given) == 1
    images, groups = given[0]
    assert images.shape == (42, 3, 8, 8)
    assert torch.equal(groups, torch.arange(42) // 4)


def test_answers_are_scored_against_the_truth(stub: Any) -> None:
    stub(Stepping())
    assert run(source(), dataset(), "stub", MIXED, 0).accuracy == pytest.approx(100 / 3)


def test_a_target_that_a_short_stream_leaves_out_has_no_score() -> None:
    record = run(source(), dataset(), "source", Stream(("a", "b"), 4, 0, limit=1), 0)
    assert record.images == 1
    assert len(record.by_target) == 1
    assert record.accuracy in (0.0, 100.0)


def test_every_method_of_the_catalogue_runs() -> None:
    model, data, told = source(), dataset(), []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    methods = catalog.names(ADAPTERS)
    records = compare(
        model, data, methods, [SINGLE, MIXED], 0, lambda m, s: told.append((m, s.targets))
    )
    assert [(r.method, r.targets) for r in records] == told
    assert [(r.method, r.targets) for r in records] == [
        (m, s.targets) for s in (SINGLE, MIXED) for m in methods
    ]
    assert all(0 <= r.accuracy <= 100 and r.images == 21 * len(r.targets) for r in records)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_the_same_run_gives_the_same_answers() -> None:
    for method in catalog.names(ADAPTERS):
        one, other = (run(source(), dataset(), method, MIXED, 0) for _ in range(2))
        assert one.by_target == other.by_target


def test_settings_reach_the_method_they_are_of_and_no_other() -> None:
    records = compare(
        source(), dataset(), ["tent", "t3a"], [SINGLE], 0, settings={"tent": {"steps": 2}}
    )
    assert records[0].settings["steps"] == 2
    assert records[1].settings == build_adapter("t3a", source())[1]


def test_settings_of_a_method_are_kept_and_checked() -> None:
    _, settings = build_adapter("tent", source(), steps=2)
    assert settings["steps"] == 2
    with pytest.raises(UserError, match="there is no setting 'step'; the settings are: learning"):
        build_adapter("tent", source(), step=2)
