from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.streams import Stream


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
    expected = [(dataset.index(name), i) for name in stream.targets for i in range(20)]
    order = [tuple(row) for row in stream.order(dataset).tolist()]
    assert sorted(order) == sorted(expected)


@settings(deadline=None, max_examples=20)
@given(fields=streams)
def test_batches_are_full_but_for_the_last_and_hold_what_the_order_says(
    dataset: DomainDataset, fields: dict[str, Any]
) -> None:
    stream = Stream(**fields)
    batches = list(stream.batches(dataset))
    sizes = [len(batch.images) for batch in batches]
    total = 20 * len(stream.targets)
    assert sum(sizes) == total
    assert all(size == stream.batch_size for size in sizes[:-1])
    images, labels = dataset.pick(stream.order(dataset))
    assert torch.equal(torch.cat([batch.images for batch in batches]), images)
    assert torch.equal(torch.cat([batch.truth.labels for batch in batches]), labels)
    domains = torch.cat([batch.truth.domains for batch in batches])
    assert torch.equal(domains, stream.order(dataset)[:, 0])


@settings(deadline=None, max_examples=20)
@given(fields=streams, images=st.integers(1, 100))
def test_chunks_are_the_batches_several_at_once(
    dataset: DomainDataset, fields: dict[str, Any], images: int
) -> None:
    stream = Stream(**fields)
    batches = stream.batches(dataset)
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
    first = Stream(("a", "b"), 4, 0).order(dataset)
    assert torch.equal(first, Stream(("a", "b"), 4, 0).order(dataset))
    assert torch.equal(first, Stream(("a", "b"), 7, 0).order(dataset))
    assert not torch.equal(first, Stream(("a", "b"), 4, 1).order(dataset))


def test_several_targets_arrive_mixed(dataset: DomainDataset) -> None:
    first_half = Stream(("a", "b", "c"), 4, 0).order(dataset)[:30, 0]
    counts = torch.bincount(first_half, minlength=3)
    assert counts.min() >= 5  # unmixed, the last domain would not have begun


def test_the_order_is_not_that_of_the_dataset(dataset: DomainDataset) -> None:
    assert Stream(("a",), 4, 0).order(dataset)[:, 1].tolist() != list(range(20))


def test_a_limit_stops_the_same_stream_early(dataset: DomainDataset) -> None:
    whole = Stream(("a", "c"), 4, 0).order(dataset)
    assert torch.equal(Stream(("a", "c"), 4, 0, 10).order(dataset), whole[:10])
    assert len(Stream(("a", "c"), 4, 0, 1000).order(dataset)) == 40


def test_the_other_domains_of_a_dataset_do_not_move_the_order(dataset: DomainDataset) -> None:
    stream = Stream(("c",), 4, 0)
    assert torch.equal(stream.order(dataset)[:, 1], stream.order(dataset.without(("a",)))[:, 1])


def test_the_key_never_changes() -> None:
    key = "e62e5beec7d4be6230993994f646172ed84d6d0219a2840018b165fa7ead6302"
    assert Stream(("0", "90"), 20, 3).key() == key


@pytest.mark.parametrize(
    "change", [{"targets": ("90", "0")}, {"batch_size": 21}, {"seed": 4}, {"limit": 5}]
)
def test_the_key_tells_streams_apart(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"targets": ("0", "90"), "batch_size": 20, "seed": 3}
    assert Stream(**fields).key() != Stream(**(fields | change)).key()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"targets": ()}, r"targets is \(\); give a tuple of at least one domain name"),
        ({"targets": "90"}, "targets is '90'; give a tuple"),
        ({"targets": ("a", "a")}, "names a domain twice"),
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
    for name, value in ({"limit": None} | fields).items():
        object.__setattr__(made, name, value)
    return made


def test_an_unknown_target_is_refused_before_the_first_batch(dataset: DomainDataset) -> None:
    with pytest.raises(ValueError, match="there is no domain 'w'; it has: a, b, c"):
        Stream(("w",), 4, 0).batches(dataset)


def test_chunks_of_no_images_are_refused(dataset: DomainDataset) -> None:
    with pytest.raises(ValueError, match="stream: images is 0; it must be at least 1"):
        Stream(("a",), 4, 0).chunks(dataset, 0)
