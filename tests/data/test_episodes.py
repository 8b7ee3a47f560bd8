import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.episodes import episode, group_sizes, minibatch


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def numbered(count: int) -> Domain:
    labels = torch.arange(count)
    pixels = labels.to(torch.uint8).view(-1, 1, 1, 1)
    return Domain("x", pixels.expand(-1, 1, 2, 2).contiguous(), labels)


@pytest.fixture(scope="module")
def dataset() -> DomainDataset:
    return synthetic.build(synthetic.Config(domains=3, classes=2, per_class=3, size=4))


def test_a_minibatch_has_equally_many_images_of_every_domain(dataset: DomainDataset) -> None:
    drawn = minibatch(dataset, 50, generator())
    assert torch.bincount(drawn.domains).tolist() == [50, 50, 50]
    assert len(drawn.images) == len(drawn.labels) == 150


def test_a_minibatch_pairs_images_labels_and_domains(dataset: DomainDataset) -> None:
    drawn = minibatch(dataset, 20, generator())
    for image, label, domain in zip(drawn.images, drawn.labels, drawn.domains, strict=True):
        source = dataset.domains[int(domain)]
        same = (source.images == image).flatten(1).all(dim=1)
        assert source.labels[same].tolist() == [int(label)]


def test_a_minibatch_reaches_every_image_and_follows_the_generator(dataset: DomainDataset) -> None:
    first, again = (minibatch(dataset, 50, generator(1)).images for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, minibatch(dataset, 50, generator(2)).images)
    assert len(torch.unique(first.flatten(1), dim=0)) == 18


@settings(deadline=None, max_examples=60)
@given(
    total=st.integers(1, 200),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4).map(tuple),
    seed=st.integers(0, 100),
)
def test_group_sizes_use_the_total_and_only_the_last_is_cut(
    total: int, sizes: tuple[int, ...], seed: int
) -> None:
    drawn = group_sizes(total, sizes, generator(seed)).tolist()
    assert sum(drawn) == total
    assert all(size in sizes for size in drawn[:-1])
    assert 1 <= drawn[-1] <= max(sizes)


def test_every_size_gets_about_as_many_images() -> None:
    drawn = group_sizes(20_000, (1, 2, 5), generator())[:-1]
    shares = torch.stack([drawn[drawn == size].sum() for size in (1, 2, 5)]) / drawn.sum()
    assert shares.sub(1 / 3).abs().max() < 0.03


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), seed=st.integers(0, 100))
def test_an_episode_has_the_groups_asked_and_no_image_twice_in_one(
    sizes: list[int], seed: int
) -> None:
    drawn = episode(numbered(30), torch.tensor(sizes), generator(seed))
    assert torch.bincount(drawn.groups).tolist() == sizes
    assert drawn.groups.diff().ge(0).all()
    assert drawn.images[:, 0, 0, 0].tolist() == drawn.labels.tolist()
    for group in range(len(sizes)):
        mine = drawn.labels[drawn.groups == group]
        assert len(torch.unique(mine)) == len(mine)


def test_groups_are_drawn_one_by_one_and_follow_the_generator() -> None:
    sizes = torch.tensor([30, 30])
    first, again = (episode(numbered(30), sizes, generator(1)).labels for _ in range(2))
    assert torch.equal(first, again)
    assert first[:30].tolist() != first[30:].tolist()
    assert not torch.equal(first, episode(numbered(30), sizes, generator(2)).labels)


def test_what_cannot_be_drawn_is_refused(dataset: DomainDataset) -> None:
    with pytest.raises(ValueError, match="per_domain is 0; it must be at least 1"):
        minibatch(dataset, 0, generator())
    with pytest.raises(ValueError, match="total is 0; it must be at least 1"):
        group_sizes(0, (1,), generator())
    with pytest.raises(ValueError, match=r"sizes is \(\); give at least one size"):
        group_sizes(5, (), generator())
    with pytest.raises(ValueError, match=r"sizes is \(4, 0\); .* each at least 1"):
        group_sizes(5, (4, 0), generator())
    with pytest.raises(ValueError, match="a group of 31 was asked of domain 'x', which has 30"):
        episode(numbered(30), torch.tensor([2, 31]), generator())
    with pytest.raises(ValueError, match=r"sizes is \[3, 0\]; .* each at least 1"):
        episode(numbered(30), torch.tensor([3, 0]), generator())
