from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream
from generalizeformer.errors import DataError, UserError


@pytest.fixture(scope="module")
def dataset() -> DomainDataset:
    return synthetic.build(synthetic.Config(domains=3, classes=4, per_class=5, size=4))


# Fields, not streams: they are built in the tests, where a type checker may draw random numbers.
streams = st.fixed_dictionaries(
    {
        "targets": st.lists(st.sampled_from("abc"), min_size=1, unique=True).map(tuple),
        "batch_size": st.integers(1, 70),
        "seed": st.integers(0, 10),
    }
)


@settings(deadline=None, max_examples=40)
@given(fields=streams)
def test_every_image_of_every_target_arrives_exactly_once(
    dataset: DomainDataset, fields: dict[str, Any]
) -> None:
    stream = Stream(**fields)
    expected = [(number, i) for number in range(len(stream.targets)) for i in range(20)]
    order = [tuple(row) for row in stream.arrivals(dataset).tolist()]
    assert sorted(order) == sorted(expected)


@settings(deadline=None, max_examples=20)
@given(fields=streams)
def test_batches_are_full_but_for_the_last_and_hold_what_the_order_says(
    dataset: DomainDataset, fields: dict[str, Any]
) -> None:
    stream = Stream(**fields)
    batches = list(stream.chunks(dataset, 1))
    sizes = [len(batch.images) for batch in batches]
    total = 20 * len(stream.targets)
    assert sum(sizes) == total
    assert all(size == stream.batch_size for size in sizes[:-1])
    numbers, places = stream.arrivals(dataset).unbind(1)
    domains = torch.tensor([dataset.index(name) for name in stream.targets])[numbers]
    images, labels = dataset.pick(torch.stack((domains, places), 1))
    assert torch.equal(torch.cat([batch.images for batch in batches]), images)
    assert torch.equal(torch.cat([batch.truth.labels for batch in batches]), labels)
    assert torch.equal(torch.cat([batch.truth.domains for batch in batches]), numbers)


@settings(deadline=None, max_examples=20)
@given(fields=streams, images=st.integers(1, 100))
def test_chunks_are_the_batches_several_at_once(
    dataset: DomainDataset, fields: dict[str, Any], images: int
) -> None:
    stream = Stream(**fields)
    batches = stream.chunks(dataset, 1)
    for chunk in stream.chunks(dataset, images):
        assert len(chunk.images) <= max(images, stream.batch_size)
        assert torch.unique(chunk.groups).tolist() == list(range(int(chunk.groups.max()) + 1))
        for group in range(int(chunk.groups.max()) + 1):
            mine, batch = chunk.groups == group, next(batches)
            assert torch.equal(chunk.images[mine], batch.images)
            assert torch.equal(chunk.truth.labels[mine], batch.truth.labels)
            assert torch.equal(chunk.truth.domains[mine], batch.truth.domains)
    assert next(batches, None) is None


def test_chunks_take_as_many_batches_as_fit(dataset: DomainDataset) -> None:
    chunks = Stream(("a", "b"), 8, 0).chunks(dataset, 20)
    assert [len(chunk.images) for chunk in chunks] == [16, 16, 8]


def test_the_seed_and_the_targets_set_the_order_and_the_batch_size_does_not(
    dataset: DomainDataset,
) -> None:
    first = Stream(("a", "b"), 4, 0).arrivals(dataset)
    assert torch.equal(first, Stream(("a", "b"), 4, 0).arrivals(dataset))
    assert torch.equal(first, Stream(("a", "b"), 7, 0).arrivals(dataset))
    assert not torch.equal(first, Stream(("a", "b"), 4, 1).arrivals(dataset))


def test_a_plain_stream_is_the_one_it_always_was(dataset: DomainDataset) -> None:
    rows = Stream(("a", "b"), 4, 0).arrivals(dataset)[:8].tolist()
    assert rows == [[0, 15], [1, 15], [1, 11], [1, 14], [0, 4], [0, 19], [1, 9], [1, 2]]


def test_several_targets_arrive_mixed(dataset: DomainDataset) -> None:
    first_half = Stream(("a", "b", "c"), 4, 0).arrivals(dataset)[:30, 0]
    counts = torch.bincount(first_half, minlength=3)
    assert counts.min() >= 5  # unmixed, the last domain would not have begun


def test_the_order_is_not_that_of_the_dataset(dataset: DomainDataset) -> None:
    assert Stream(("a",), 4, 0).arrivals(dataset)[:, 1].tolist() != list(range(20))


def test_a_limit_stops_the_same_stream_early(dataset: DomainDataset) -> None:
    whole = Stream(("a", "c"), 4, 0).arrivals(dataset)
    assert torch.equal(Stream(("a", "c"), 4, 0, 10).arrivals(dataset), whole[:10])
    assert len(Stream(("a", "c"), 4, 0, 1000).arrivals(dataset)) == 40


def test_the_other_domains_of_a_dataset_do_not_move_the_order(dataset: DomainDataset) -> None:
    stream = Stream(("c",), 4, 0)
    assert torch.equal(stream.arrivals(dataset), stream.arrivals(dataset.without(("a",))))


def test_the_key_never_changes() -> None:
    key = "e62e5beec7d4be6230993994f646172ed84d6d0219a2840018b165fa7ead6302"
    assert Stream(("0", "90"), 20, 3).key() == key


@pytest.mark.parametrize(
    "change",
    [
        {"targets": ("90", "0")},
        {"batch_size": 21},
        {"seed": 4},
        {"limit": 5},
        {"order": "in_turn"},
        {"order": "dirichlet", "settings": {"beta": 1.0}},
    ],
)
def test_the_key_tells_streams_apart(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"targets": ("0", "90"), "batch_size": 20, "seed": 3}
    assert Stream(**fields).key() != Stream(**(fields | change)).key()


def test_usual_settings_may_be_named_or_left_out() -> None:
    short = Stream(("0",), 20, 3, order="dirichlet", settings={"minimum": 5})
    long = Stream(("0",), 20, 3, order="dirichlet", settings={"minimum": 5, "beta": 0.1})
    assert short == long
    assert (hash(short), short.key()) == (hash(long), long.key())
    assert short.key() != Stream(("0",), 20, 3, order="dirichlet").key()


@pytest.mark.parametrize(
    ("order", "settings", "message"),
    [
        ("dirichlt", {}, "orders: there is no 'dirichlt'; did you mean 'dirichlet'"),
        ("dirichlet", {"bta": 1}, "there is no setting 'bta'; the settings are: beta, minimum"),
        ("dirichlet", {"beta": "x"}, "setting beta: .* got 'x'"),
        ("dirichlet", {"beta": 0}, "dirichlet: beta is 0.0; it must be above 0"),
        ("shuffled", {"beta": 1}, "there is no setting 'beta'"),
    ],
)
def test_orders_that_cannot_be_are_refused(order: str, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Stream(("a",), 4, 0, order=order, settings=settings)


@pytest.mark.parametrize("order", ["in_turn", "one_pass"])
def test_a_target_may_come_back_where_the_order_allows_it(
    dataset: DomainDataset, order: str
) -> None:
    stream = Stream(("a", "a@rotation:5", "a"), 4, 0, order=order)
    assert sorted(set(stream.arrivals(dataset)[:, 0].tolist())) == [0, 1, 2]
    with pytest.raises(DataError, match="names a target twice"):
        Stream(("a", "a@rotation:5", "a"), 4, 0, order="recurring")


WORDS = ("a@fog:3", "b@rotation:20", "b", "a@look:4")


@settings(deadline=None, max_examples=10)
@given(size=st.integers(1, 25), images=st.integers(1, 60))
def test_pixels_do_not_depend_on_how_the_stream_is_cut(
    images_under_change: dict[tuple[int, int], Tensor],
    dataset: DomainDataset,
    size: int,
    images: int,
) -> None:
    stream = Stream(WORDS, size, 0)
    shown = torch.cat([chunk.images for chunk in stream.chunks(dataset, images)])
    for (target, place), image in zip(stream.arrivals(dataset).tolist(), shown, strict=True):
        assert torch.equal(image, images_under_change[target, place])


@pytest.fixture(scope="module")
def images_under_change(dataset: DomainDataset) -> dict[tuple[int, int], Tensor]:
    """Every image of every target, each made alone."""
    stream = Stream(WORDS, 1, 0)
    arrivals = stream.arrivals(dataset).tolist()
    batches = stream.chunks(dataset, 1)
    return {(t, i): batch.images[0] for (t, i), batch in zip(arrivals, batches, strict=True)}


def test_a_change_leaves_the_stored_images_and_the_truth_alone(dataset: DomainDataset) -> None:
    before = [domain.images.clone() for domain in dataset.domains]
    stream = Stream(WORDS, 7, 0)
    changed = 0
    for batch in stream.chunks(dataset, 1):
        for image, label, target in zip(
            batch.images, batch.truth.labels, batch.truth.domains, strict=True
        ):
            name = WORDS[int(target)][0]
            same = (dataset[name].images == image).flatten(1).all(1).any()
            changed += int(not same)
            assert int(label) in range(4)
            if WORDS[int(target)] == "b":
                assert same
    assert changed >= 50  # of the 60 under a change
    for domain, images in zip(dataset.domains, before, strict=True):
        assert torch.equal(domain.images, images)


def test_noise_is_another_for_another_seed_and_the_same_for_the_same(
    dataset: DomainDataset,
) -> None:
    def shown(seed: int) -> dict[int, Tensor]:
        stream = Stream(("a@gaussian_noise:5",), 20, seed)
        batch = next(stream.chunks(dataset, 1))
        places = stream.arrivals(dataset)[:, 1].tolist()
        return dict(zip(places, batch.images, strict=True))

    one, same, other = shown(0), shown(0), shown(1)
    assert all(torch.equal(one[i], same[i]) for i in range(20))
    assert not any(torch.equal(one[i], other[i]) for i in range(20))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"targets": ()}, r"targets is \(\); give a tuple of at least one domain name"),
        ({"targets": "90"}, "targets is '90'; give a tuple"),
        ({"targets": ("a", "a")}, "names a target twice"),
        ({"batch_size": 0}, "stream: batch_size is 0; it must be at least 1"),
        ({"limit": 0}, "stream: limit is 0; it must be at least 1"),
    ],
)
def test_a_stream_that_cannot_flow_is_refused(fields: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"targets": ("a",), "batch_size": 4, "seed": 0}
    with pytest.raises(ValueError, match=message):
        Stream.__post_init__(_unchecked(good | fields))


def _unchecked(fields: dict[str, Any]) -> Stream:
    """A stream nobody has looked at: a type checker would otherwise speak before the stream."""
    made = object.__new__(Stream)
    for name, value in ({"limit": None, "order": "shuffled", "settings": ()} | fields).items():
        object.__setattr__(made, name, value)
    return made


def test_an_unknown_target_is_refused_before_the_first_batch(dataset: DomainDataset) -> None:
    with pytest.raises(ValueError, match="there is no domain 'w'; it has: a, b, c"):
        Stream(("w",), 4, 0).chunks(dataset, 1)


def test_chunks_of_no_images_are_refused(dataset: DomainDataset) -> None:
    with pytest.raises(ValueError, match="stream: images is 0; it must be at least 1"):
        Stream(("a",), 4, 0).chunks(dataset, 0)
