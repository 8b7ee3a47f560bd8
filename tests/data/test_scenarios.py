import pytest

from generalizeformer.data import scenarios
from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream
from generalizeformer.imaging.corruptions import NAMES


@pytest.fixture(scope="module")
def dataset() -> DomainDataset:
    return synthetic.build(synthetic.Config(domains=2, classes=2, per_class=30, size=32))


@pytest.mark.parametrize(
    "stream",
    [
        scenarios.continual_corruptions("a"),
        scenarios.gradual_corruptions("a"),
        scenarios.mixed_corruptions("a"),
        scenarios.practical_corruptions("a"),
        scenarios.gradual_rotation("a"),
        scenarios.recurring(("a", "b")),
        scenarios.correlated(("a", "b")),
    ],
    ids=lambda stream: f"{stream.order}-{len(stream.targets)}",
)
def test_every_scenario_flows(dataset: DomainDataset, stream: Stream) -> None:
    batch = next(stream.chunks(dataset, 1))
    assert len(batch.images) == min(stream.batch_size, len(stream.arrivals(dataset)))


def test_continual_corruptions_come_in_the_published_order(dataset: DomainDataset) -> None:
    stream = scenarios.continual_corruptions("a", severity=3)
    assert stream.targets == tuple(f"a@{name}:3" for name in NAMES)
    targets = stream.arrivals(dataset)[:, 0].tolist()
    assert targets == [number for number in range(15) for _ in range(60)]


def test_gradual_corruptions_come_and_go(dataset: DomainDataset) -> None:
    stream = scenarios.gradual_corruptions("a")
    assert len(stream.targets) == 15 * 9
    assert [word[-1] for word in stream.targets[:9]] == list("123454321")
    assert len(stream.arrivals(dataset)) == 15 * 9 * 60


def test_practical_corruptions_are_all_of_them_in_another_order() -> None:
    assert sorted(scenarios.PRACTICAL) == sorted(NAMES)
    assert scenarios.PRACTICAL != NAMES
    assert scenarios.practical_corruptions("a").targets[0] == "a@motion_blur:5"


def test_mixed_corruptions_are_mixed(dataset: DomainDataset) -> None:
    targets = scenarios.mixed_corruptions("a").arrivals(dataset)[:, 0].tolist()
    assert len(set(targets[:64])) > 10
    assert len(targets) == 15 * 60


def test_a_gradual_rotation_goes_from_upright_to_a_quarter_turn(dataset: DomainDataset) -> None:
    stream = scenarios.gradual_rotation("a", steps=4, there_and_back=True)
    words = ("0", "30", "60", "90")
    assert stream.targets == tuple(f"a@rotation:{angle}" for angle in words)
    targets = stream.arrivals(dataset)[:, 0].tolist()
    assert (targets[0], targets[-1]) == (0, 0)
    assert max(targets) == 3


def test_one_step_of_a_rotation_is_none() -> None:
    assert scenarios.gradual_rotation("a", steps=1).targets == ("a@rotation:0",)
