import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.data.datasets import digits
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.splits import (
    domainbed,
    seed_hash,
    share_classes,
    split_all,
)

PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
HELD_OUT = {"art_painting": 409, "cartoon": 468, "photo": 334, "sketch": 785}


def numbered(name: str, count: int) -> Domain:
    """A domain whose labels are the numbers of its images, so that parts can be traced."""
    labels = torch.arange(count)
    pixels = (labels % 256).to(torch.uint8).view(-1, 1, 1, 1)
    return Domain(name, pixels.expand(-1, 1, 2, 2).contiguous(), labels)


def of(*domains: Domain) -> DomainDataset:
    classes = tuple(str(k) for k in range(max(len(domain) for domain in domains)))
    return DomainDataset("toy", classes, domains)


def split(domain: Domain, *, validation: float, seed: int) -> tuple[Domain, Domain]:
    training, held = split_all(of(domain), validation=validation, seed=seed)
    return training.domains[0], held.domains[0]


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(2, 300),
    validation=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 5),
)
def test_the_parts_are_disjoint_cover_the_domain_and_have_the_size_asked(
    count: int, validation: float, seed: int
) -> None:
    training, held_out = split(numbered("x", count), validation=validation, seed=seed)
    together = training.labels.tolist() + held_out.labels.tolist()
    assert sorted(together) == list(range(count))
    assert len(training) >= 1
    assert len(held_out) >= 1
    assert abs(len(held_out) - validation * count) <= 1


def test_images_stay_with_their_labels() -> None:
    training, _ = split(numbered("x", 200), validation=0.3, seed=0)
    assert training.images[:, 0, 0, 0].tolist() == training.labels.tolist()


def held_out(name: str, seed: int) -> list[int]:
    return split(numbered(name, 100), validation=0.2, seed=seed)[1].labels.tolist()


def test_the_draw_depends_on_the_seed_and_the_length_alone() -> None:
    assert held_out("x", 0) == held_out("y", 0)
    assert held_out("x", 0) != held_out("x", 1)


def test_no_validation_digit_of_any_angle_is_learned_from_at_another() -> None:
    upright = digits.upright("source")
    numbers = torch.arange(len(upright))
    classes = tuple(map(str, range(len(upright))))
    angles = tuple(Domain(str(a), upright.images, numbers) for a in digits.SOURCES["outer"])
    assert {len(d) for d in digits.sources(digits.Config()).domains} == {len(upright)}
    training, validation = split_all(
        DomainDataset("digits", classes, angles), validation=0.2, seed=0
    )
    learned = {number for domain in training.domains for number in domain.labels.tolist()}
    held = {number for domain in validation.domains for number in domain.labels.tolist()}
    assert not learned & held
    assert len(held) == 700


def test_the_held_out_images_come_from_all_over_the_domain() -> None:
    assert min(held_out("x", 0)) < 30
    assert max(held_out("x", 0)) > 70


def test_splitting_all_splits_each() -> None:
    dataset = of(numbered("x", 50), numbered("y", 40))
    training, validation = split_all(dataset, validation=0.2, seed=3)
    assert training.names == validation.names == ("x", "y")
    for name in dataset.names:
        first, second = split(dataset[name], validation=0.2, seed=3)
        assert torch.equal(training[name].labels, first.labels)
        assert torch.equal(validation[name].labels, second.labels)


@pytest.mark.parametrize("validation", [0.0, 1.0, -0.1, 20.0])
def test_a_share_outside_0_and_1_is_refused(validation: float) -> None:
    with pytest.raises(ValueError, match=f"validation is {validation}, .* between 0 and 1"):
        split(numbered("x", 10), validation=validation, seed=0)


def test_a_single_image_cannot_be_split() -> None:
    with pytest.raises(ValueError, match=r"domain 'x' has 1 image\(s\), too few for two parts"):
        split(numbered("x", 1), validation=0.5, seed=0)


def test_domainbed_seeds_are_the_published_ones() -> None:
    assert [seed_hash(0, e) for e in range(4)] == [894182419, 1514274641, 1325548499, 1796103049]
    assert [seed_hash(1, 0), seed_hash(2, 0)] == [785910682, 472130416]
    assert seed_hash("PACS", "ERM", [0], 0, 0) == 94828300


def test_domainbed_holds_out_the_published_images_of_pacs() -> None:
    assert domainbed(2048, 0.2, trial=0, number=0)[:4].tolist() == [548, 677, 1997, 977]
    sizes = [len(domainbed(n, 0.2, 0, number)) for number, n in enumerate(PACS.values())]
    assert sizes == list(HELD_OUT.values())


@pytest.mark.parametrize("target", PACS)
def test_a_domain_keeps_its_domainbed_number_when_another_is_left_out(target: str) -> None:
    dataset = of(*(numbered(name, count) for name, count in PACS.items()))
    training, held = split_all(
        dataset.without([target]), validation=0.2, seed=0, division="domainbed"
    )
    assert held.names == tuple(name for name in PACS if name != target)
    for domain in held.domains:
        expected = domainbed(len(dataset[domain.name]), 0.2, 0, list(PACS).index(domain.name))
        assert sorted(domain.labels.tolist()) == sorted(expected.tolist())
        assert len(domain) == HELD_OUT[domain.name]
        assert not set(domain.labels.tolist()) & set(training[domain.name].labels.tolist())


def test_too_small_a_domain_for_domainbed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"domain 'x' has 4 image\(s\), too few"):
        split_all(of(numbered("x", 4)), validation=0.2, seed=0, division="domainbed")


def test_a_dataset_without_official_lists_says_so() -> None:
    with pytest.raises(ValueError, match="toy came without official lists; use the split seeded"):
        split_all(of(numbered("x", 4)), validation=0.2, seed=0, division="official")


def sevens(*counts: tuple[int, ...]) -> DomainDataset:
    """Domains of seven classes with these many images of each."""
    labels = [torch.arange(7).repeat_interleave(torch.tensor(count)) for count in counts]
    pixels = [torch.zeros(len(each), 1, 1, 1, dtype=torch.uint8) for each in labels]
    domains = (Domain(f"d{k}", *pair) for k, pair in enumerate(zip(pixels, labels, strict=True)))
    return DomainDataset("toy", tuple(map(str, range(7))), tuple(domains))


ORDERS = {
    "labels": [[0, 1, 2], [3, 4], [5, 6]],
    "0": [[2, 4, 3], [6, 5], [0, 1]],
    "1": [[5, 0, 1], [4, 2], [6, 3]],
    "2": [[5, 6, 2], [3, 4], [0, 1]],
    "3": [[5, 6, 2], [1, 4], [3, 0]],
    "4": [[1, 2, 0], [5, 4], [3, 6]],
}


@pytest.mark.parametrize("order", ORDERS)
def test_shared_classes_are_the_published_ones(order: str) -> None:
    shared = share_classes(sevens((1,) * 7, (2,) * 7, (3,) * 7), order)
    known = [sorted(set(domain.labels.tolist())) for domain in shared.domains]
    assert known == [sorted(part) for part in ORDERS[order]]


def test_without_an_order_all_sources_know_all_classes() -> None:
    sources = sevens((1,) * 7, (2,) * 7, (3,) * 7)
    assert share_classes(sources, None) is sources


def test_shared_classes_of_pacs_have_the_published_sizes() -> None:
    art = (379, 255, 285, 184, 201, 295, 449)
    cartoon = (389, 457, 346, 135, 324, 288, 405)
    photo = (189, 202, 182, 186, 199, 280, 432)
    shared = share_classes(sevens(art, cartoon, photo), "labels")
    assert [len(domain) for domain in shared.domains] == [919, 459, 712]


def test_more_domains_than_classes_cannot_share_them() -> None:
    with pytest.raises(ValueError, match="7 classes cannot be shared out over 8 domains"):
        share_classes(sevens(*[(1,) * 7] * 8), "labels")
