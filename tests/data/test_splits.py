import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generalizeformer.data.datasets import digits
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.splits import split, split_all


def numbered(name: str, count: int) -> Domain:
    """A domain whose labels are the numbers of its images, so that parts can be traced."""
    labels = torch.arange(count)
    pixels = (labels % 256).to(torch.uint8).view(-1, 1, 1, 1)
    return Domain(name, pixels.expand(-1, 1, 2, 2).contiguous(), labels)


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
    classes = tuple(str(k) for k in range(50))
    dataset = DomainDataset("toy", classes, (numbered("x", 50), numbered("y", 40)))
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
    with pytest.raises(ValueError, match=r"domain 'x' has 1 image\(s\), .* at least 2"):
        split(numbered("x", 1), validation=0.5, seed=0)
