import math
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from generalizeformer import catalog
from generalizeformer.benchmark import runner
from generalizeformer.benchmark.records import Refusal
from generalizeformer.benchmark.runner import ADAPTERS, build_adapter, compare, run
from generalizeformer.benchmark.selection import choose
from generalizeformer.data.streams import Stream
from generalizeformer.errors import ImageError, UserError

from .toys import dataset, source

SINGLE, MIXED = Stream(("a",), 4, 0), Stream(("a", "b"), 4, 0)
# No batch of one image is left over, which some methods refuse.
EVEN, EVEN_MIXED = Stream(("a",), 7, 0), Stream(("a", "b"), 7, 0)


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
        monkeypatch.setattr(runner, "build_adapter", lambda *_: (adapter, {}))
        return adapter.given

    return place


@pytest.mark.parametrize("stream", [SINGLE, MIXED, Stream(("b", "a"), 5, 3, limit=30)])
def test_accuracy_is_a_plain_count(stream: Stream) -> None:
    data, model = dataset(), source()
    record = run(model, data, "source", stream, run_seed=9)
    right: dict[str, list[bool]] = {name: [] for name in stream.targets}
    for target, image in stream.arrivals(data).tolist():
        domain = data[stream.targets[target]]
        pixels = domain.images[image : image + 1]
        answer = model.backbone.eval()(model.card.preprocessing(pixels)).argmax().item()
        right[domain.name].append(answer == domain.labels[image].item())
    everything = [answer for answers in right.values() for answer in answers]
    assert record.images == len(everything)
    assert record.accuracy == pytest.approx(100 * sum(everything) / len(everything))
    assert record.by_target == pytest.approx({n: 100 * sum(a) / len(a) for n, a in right.items()})
    assert (record.method, record.targets, record.run_seed) == ("source", stream.targets, 9)
    assert 20 < record.accuracy < 80  # or nothing was tested
    assert record.seconds > 0


def test_every_class_has_its_own_percent(stub: Any) -> None:
    stub(Stepping())
    record = run(source(), dataset(), "stub", MIXED, 0)
    assert record.by_class == {"0": 100.0, "1": 0.0, "2": 0.0}
    assert record.class_accuracy == pytest.approx(100 / 3)
    few = run(source(), dataset(), "stub", Stream(("a",), 4, 0, limit=1), 0)
    assert len(few.by_class) == 1  # a class that did not come has no score


def test_calibration_is_that_of_the_softmax_of_the_answers(stub: Any) -> None:
    stub(Stepping())  # answers one class with 1 and the others with 0, so with this probability:
    sure = 100 * math.e / (math.e + 2)
    record = run(source(), dataset(), "stub", MIXED, 0)
    assert record.calibration_error == pytest.approx(sure - 100 / 3, abs=1e-4)


COSTS: dict[str, tuple[float, float, dict[str, Any]]] = {
    "source": (1, 0, {}),
    "alpha_bn": (1, 0, {}),
    "t3a": (1, 0, {}),
    "tent": (3, 3, {"steps": 3}),
    "tent_c": (1, 0, {"steps": 3}),
    "shot": (2, 2, {"steps": 2}),
    "pl": (1, 1, {}),
}


@pytest.mark.parametrize("method", COSTS)
@pytest.mark.parametrize("stream", [EVEN, EVEN_MIXED, MIXED])
def test_passes_are_counted_per_image(method: str, stream: Stream) -> None:
    forwards, backwards, settings = COSTS[method]
    record = run(source(), dataset(), method, stream, 0, {method: settings}, sources=dataset())
    assert (record.forwards, record.backwards) == (forwards, backwards)


def test_a_generated_model_costs_one_pass_to_look_one_back_and_two_for_every_strength() -> None:
    model = source()
    record = run(model, dataset(), "generalizeformer", MIXED, 0)
    answers = 2 * sum(
        strength != 0 for strength in model.config.strengths
    )  # of groups and of images
    assert (record.forwards, record.backwards) == (1 + answers, 1)


def test_memory_is_only_told_where_it_is_known() -> None:
    assert run(source(), dataset(), "source", SINGLE, 0).memory is None


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
    batches = list(stream.chunks(data, 1))
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


def test_scores_are_by_target_word_and_visits_of_a_target_are_counted_together(stub: Any) -> None:
    words = ("b", "a@rotation:90", "b@look:3", "b")
    given = stub(Stepping())
    data, model = dataset(), source()
    record = run(model, data, "stub", Stream(words, 6, 0, order="in_turn"), 0)
    assert list(record.by_target) == ["b", "a@rotation:90", "b@look:3"]
    assert record.by_target == pytest.approx(dict.fromkeys(record.by_target, 100 / 3))
    assert record.images == 4 * 21
    shown = torch.cat([images for (images,) in given])
    turned = model.card.preprocessing(data["a"].images.rot90(1, (2, 3)))
    for image in shown[21:42]:
        assert (turned == image).flatten(1).all(1).any()


def test_a_record_says_which_stream_it_is_of() -> None:
    stream = Stream(("a",), 4, 0, order="dirichlet", settings={"minimum": 1})
    record = run(source(), dataset(), "source", stream, 0)
    assert (record.order, record.stream) == ("dirichlet", stream.key())
    assert record.order_settings == {"beta": 0.1, "minimum": 1, "shuffle_inside": False}
    plain = run(source(), dataset(), "source", SINGLE, 0)
    assert (plain.order, plain.order_settings) == ("shuffled", {})


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (Stream(("a@fgo:5",), 4, 0), "there is no change 'fgo'; did you mean 'fog'"),
        (Stream(("a",), 4, 0, order="dirichlet"), "lower minimum"),
    ],
)
def test_a_stream_that_cannot_flow_is_told_before_the_first_method_runs(
    stream: Stream, message: str
) -> None:
    told: list[str] = []
    with pytest.raises(UserError, match=message):
        compare(source(), dataset(), ["source"], [SINGLE, stream], 0, lambda m, _: told.append(m))
    assert not told


class Choosy(Stepping):
    def step(self, *given: Any) -> Tensor:
        if len(given[0]) < 4:
            raise ImageError("choosy: 1 image is too few;\ngive 4")
        return super().step(*given)


def test_a_method_that_refuses_is_told_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = runner.build_adapter
    choose = lambda name, *rest: (Choosy(), {}) if name == "choosy" else build(name, *rest)  # noqa: E731
    monkeypatch.setattr(runner, "build_adapter", choose)
    told: list[Refusal] = []
    records = compare(
        source(), dataset(), ["choosy", "source"], [SINGLE, EVEN], 0, refused=told.append
    )
    ran = [(r.method, r.batch_size) for r in records]
    assert ran == [("source", 4), ("choosy", 7), ("source", 7)]
    assert told == [
        Refusal(
            method="choosy",
            targets=("a",),
            setting=records[0].setting,
            why="choosy: 1 image is too few; give 4",
            stream=SINGLE.key(),
        )
    ]
    with pytest.raises(ImageError, match="too few"):  # nobody to be told
        compare(source(), dataset(), ["choosy"], [SINGLE], 0)


def test_what_is_no_refusal_ends_the_comparison(stub: Any) -> None:
    class Broken(Stepping):
        def step(self, *given: Any) -> Tensor:
            raise ZeroDivisionError

    stub(Broken())
    with pytest.raises(ZeroDivisionError):
        compare(source(), dataset(), ["stub"], [SINGLE], 0, refused=lambda _: None)


def test_an_error_of_a_method_is_not_lost(stub: Any) -> None:
    class Broken(Stepping):
        def step(self, *given: Any) -> Tensor:
            raise RuntimeError("the method's own mistake")

    stub(Broken())
    with pytest.raises(RuntimeError, match="the method's own mistake"):
        run(source(), dataset(), "stub", SINGLE, 0)


def test_time_is_that_of_the_method_alone(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Slow(Stepping):
        def step(self, *given: Any) -> Tensor:
            clock[0] += 1.0
            return super().step(*given)

    gather = Stream._gather

    def slowly(*given: Any) -> Any:
        clock[0] += 100.0
        return gather(*given)

    given = stub(Slow())
    monkeypatch.setattr(runner.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Stream, "_gather", slowly)
    record = run(source(), dataset(), "stub", SINGLE, 0)
    assert record.seconds == len(given) == 6


LEARNING = {"tent": {}, "memo": {"views": 2}, "tast": {"heads": 2}, "cotta": {"views": 2}}


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device whose first calls are slow."""
    monkeypatch.setattr(runner, "_starts_cold", lambda source: True)


@pytest.mark.parametrize("method", ["source", "generalizeformer", *LEARNING])
def test_answers_are_the_same_after_warming_up(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, as records tell them: calibration errors are made of all confidences."""
    model, data, settings = source(), dataset(), {method: LEARNING.get(method, {})}
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def record() -> Any:
        made = run(model, data, method, EVEN_MIXED, 0, settings, sources=data)
        return replace(made, seconds=0.0)

    without = record()
    monkeypatch.setattr(runner, "_starts_cold", lambda source: True)
    assert record() == without
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_a_method_that_draws_draws_the_same_after_warming_up(stub: Any, cold: None) -> None:
    class Drawing(Stepping):
        def step(self, *given: Any) -> Tensor:
            super().step(*given)
            return torch.rand(len(given[0]), 3)

    given = stub(Drawing())
    state = torch.get_rng_state()
    runner.warm(source(), dataset(), "stub", SINGLE, {})
    assert len(given) == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_a_throwaway_meets_the_first_batch_untimed_and_is_gone_before_memory_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, cold: None
) -> None:
    clock, built, seen = [0.0], [], []

    class Slow(Stepping):
        def step(self, *given: Any) -> Tensor:
            clock[0] += 1.0
            seen.append((len(built), given[0]))
            return super().step(*given)

    def build(*_: Any, **settings: Any) -> Any:
        made = Slow()
        made.itself = made  # only the collector takes this away
        built.append(weakref.ref(made))
        return made, settings

    def held(model: Any) -> None:
        assert [made() for made in built] == [None]

    monkeypatch.setattr(runner, "build_adapter", build)
    monkeypatch.setattr(runner, "_allocated", held)
    monkeypatch.setattr(runner.time, "perf_counter", lambda: clock[0])
    record = run(source(), dataset(), "stub", SINGLE, 0, {"stub": {"steps": 2}})
    assert record.seconds == 6
    assert record.settings == {"steps": 2}
    assert [number for number, _ in seen] == [1] + [2] * 6
    assert torch.equal(seen[0][1], seen[1][1])


def test_a_method_without_state_warms_up_with_as_many_images_as_are_timed(
    stub: Any, cold: None
) -> None:
    given = stub(Grouped())
    run(source(), dataset(), "stub", MIXED, 0)
    (warmed, groups), (timed, same) = given
    assert torch.equal(warmed, timed)
    assert torch.equal(groups, same)


def test_nothing_is_warmed_up_where_first_calls_are_like_all_others(stub: Any) -> None:
    given = stub(Stepping())
    run(source(), dataset(), "stub", SINGLE, 0)
    assert len(given) == 6


def test_a_search_is_not_warmed_up(monkeypatch: pytest.MonkeyPatch, cold: None) -> None:
    warmed: list[Any] = []
    monkeypatch.setattr(runner, "warm", lambda *given: warmed.append(given))
    choose(source(), dataset(), "alpha_bn", 7, 0)
    assert not warmed
    run(source(), dataset(), "alpha_bn", SINGLE, 0)
    assert len(warmed) == 1


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
        model, data, methods, [EVEN, EVEN_MIXED], 0, lambda m, s: told.append((m, s.targets))
    )
    assert [(r.method, r.targets) for r in records] == told
    assert [(r.method, r.targets) for r in records] == [
        (m, s.targets) for s in (EVEN, EVEN_MIXED) for m in methods
    ]
    assert all(0 <= r.accuracy <= 100 and r.images == 21 * len(r.targets) for r in records)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_the_same_run_gives_the_same_answers() -> None:
    for method in catalog.names(ADAPTERS):
        one, other = (run(source(), dataset(), method, EVEN_MIXED, 0) for _ in range(2))
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
