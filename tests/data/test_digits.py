import hashlib
from importlib import resources

import pytest
import torch

from generalizeformer.data.datasets import digits
from generalizeformer.data.datasets.digits import SOURCES, TARGETS, Config, rotate, upright


def prints(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_there_are_500_digits_of_each_class_divided_350_to_150() -> None:
    assert torch.bincount(upright("source").labels).tolist() == [350] * 10
    assert torch.bincount(upright("target").labels).tolist() == [150] * 10


def test_no_digit_is_in_both_parts_and_none_comes_twice() -> None:
    source, target = prints(upright("source").images), prints(upright("target").images)
    assert (len(source), len(target)) == (3500, 1500)
    assert not source & target


def test_the_division_never_changes() -> None:
    content = upright("target").images.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == "4a1966508dea6881"


def test_digits_look_like_their_labels() -> None:
    """The nearest class mean, learnt on the source part, is right for most target digits."""
    source, target = upright("source"), upright("target")
    means = torch.stack([source.images[source.labels == k].float().mean(0) for k in range(10)])
    distances = torch.cdist(target.images.float().flatten(1), means.flatten(1))
    assert (distances.argmin(1) == target.labels).float().mean() > 0.75


def test_the_file_is_small_and_has_its_licence_beside_it() -> None:
    folder = resources.files("generalizeformer.data.datasets") / "_digits"
    assert len((folder / "digits.xz").read_bytes()) < 1_000_000
    notice = (folder / "LICENSE.mnist").read_text()
    for words in ("Yann LeCun", "Corinna Cortes", "CC BY-SA 3.0", "subset of 5,000"):
        assert words in notice


@pytest.mark.parametrize("protocol", ["outer", "inner"])
def test_protocols_give_their_angles_and_keep_the_parts_apart(protocol: str) -> None:
    config = Config(protocol=protocol)  # type: ignore[arg-type]
    dataset = digits.build(config)
    sources, targets = digits.sources(config), digits.targets(config)
    assert sources.names == tuple(str(angle) for angle in SOURCES[protocol])
    assert targets.names == tuple(str(angle) for angle in TARGETS[protocol])
    assert dataset.names == sources.names + targets.names
    assert dataset.classes == tuple("0123456789")
    assert {len(domain) for domain in sources.domains} == {3500}
    assert {len(domain) for domain in targets.domains} == {1500}
    assert dataset.domains[0].images.shape[1:] == (1, 28, 28)


def test_the_protocols_are_the_published_ones() -> None:
    assert SOURCES == {"outer": (15, 30, 45, 60, 75), "inner": (0, 15, 75, 90)}
    assert TARGETS == {"outer": (0, 90), "inner": (30, 45, 60)}


def test_a_domain_is_its_part_turned_by_its_angle() -> None:
    dataset = digits.build(Config())
    assert torch.equal(dataset["30"].images, rotate(upright("source").images, 30))
    assert torch.equal(dataset["30"].labels, upright("source").labels)
    assert torch.equal(dataset["90"].images, rotate(upright("target").images, 90))


def test_angles_of_ones_own_take_the_place_of_the_protocols() -> None:
    config = Config(source_angles=(5,), target_angles=(-5, 180))
    assert digits.build(config).names == ("5", "-5", "180")
    seen = digits.targets(Config(target_angles=SOURCES["outer"]))
    assert {len(domain) for domain in seen.domains} == {1500}


def test_a_rotation_by_0_is_exact_and_by_quarters_nearly() -> None:
    images = upright("target").images
    assert torch.equal(rotate(images, 0), images)
    for quarters in (1, 2, 3):
        turned = torch.rot90(images, quarters, (2, 3))
        assert (rotate(images, 90 * quarters).int() - turned.int()).abs().max() <= 1


def test_small_rotations_are_counter_clockwise_and_bring_in_black() -> None:
    bar = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    bar[..., 13:15, 18:28] = 255  # to the right of the centre
    turned = rotate(bar, 45).float()[0, 0]
    assert turned[:14, 14:].sum() > 0.8 * turned.sum()  # now up and to the right
    white = torch.full_like(bar, 255)
    corners = rotate(white, 45)[0, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners.tolist() == [0, 0, 0, 0]


def test_turning_there_and_back_gives_nearly_the_digit() -> None:
    images = upright("target").images[:50]
    back = rotate(rotate(images, 30), -30)
    away = rotate(rotate(images, 30), 30)
    original = images.float()
    assert (back.float() - original).abs().mean() < 0.2 * (away.float() - original).abs().mean()


def test_configs_that_make_no_dataset_are_refused() -> None:
    with pytest.raises(ValueError, match="15 is both a source and a target angle"):
        digits.build(Config(target_angles=(0, 15)))
    with pytest.raises(ValueError, match="digits: got no domains"):
        digits.sources(Config(source_angles=()))
    config = object.__new__(Config)
    object.__setattr__(config, "protocol", "sideways")
    with pytest.raises(ValueError, match="no protocol 'sideways'; choose one of: outer, inner"):
        config.__post_init__()
