import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from generalizeformer.config import from_dict, to_dict
from generalizeformer.data.datasets import pacs
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.splits import share_classes, split_all
from generalizeformer.errors import DataError

SIZES = {  # of the official lists, to learn from and to validate with
    "art_painting": (1840, 208),
    "cartoon": (2107, 237),
    "photo": (1499, 171),
    "sketch": (3531, 398),
}
TRAIN = {  # images of every class to learn from
    "art_painting": (341, 229, 256, 165, 180, 265, 404),
    "cartoon": (350, 411, 311, 121, 291, 259, 364),
    "photo": (170, 181, 163, 167, 179, 251, 388),
    "sketch": (694, 665, 677, 547, 734, 71, 143),
}


def domain_of(name: str, files: list[str]) -> Domain:
    labels = torch.tensor([pacs.PUBLISHED.classes.index(file.split("/")[0]) for file in files])
    stored = torch.zeros(1, 3, 1, 1, dtype=torch.uint8).expand(len(files), -1, -1, -1)
    return Domain(name, stored, labels, None, tuple(files))


def synthetic(name: str) -> Domain:
    """The official images of a domain, and as many others as are published; pixels are all black."""
    official = list(pacs._crossval()[name])
    had = Counter(stem.split("/")[0] for stem in official)
    assert pacs.PUBLISHED.counts is not None
    counts = dict(zip(pacs.PUBLISHED.classes, pacs.PUBLISHED.counts[name], strict=True))
    more = [f"{c}/other_{i}" for c, count in counts.items() for i in range(count - had[c])]
    return domain_of(name, sorted(official + more))


@pytest.mark.parametrize("name", pacs.PUBLISHED.domains)
def test_the_official_lists_divide_every_domain_as_published(name: str) -> None:
    domain = synthetic(name)
    chosen = pacs.official_validation(domain)
    assert (len(domain) - len(chosen), len(chosen)) == SIZES[name]
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert domain.files is not None
    assert {domain.files[i] for i in chosen.tolist()} == {*pacs._crossval()[name]}
    rest = torch.ones(len(domain), dtype=torch.bool).index_fill_(0, chosen, False)
    assert tuple(torch.bincount(domain.labels[rest]).tolist()) == TRAIN[name]


@pytest.mark.parametrize(
    ("target", "learned"),
    [("photo", 1452), ("art_painting", 1632), ("cartoon", 1386), ("sketch", 1877)],
)
def test_shared_classes_keep_their_part_of_the_official_lists(target: str, learned: int) -> None:
    domains = tuple(synthetic(name) for name in pacs.PUBLISHED.domains if name != target)
    sources = share_classes(DomainDataset("pacs", pacs.PUBLISHED.classes, domains), "labels")
    training, _ = split_all(sources, validation=0.1, seed=0, division="official")
    assert sum(map(len, training.domains)) == learned


def test_the_place_of_an_image_and_not_its_number_decides() -> None:
    domain = synthetic("photo")
    turned = domain.take(torch.arange(len(domain) - 1, -1, -1))
    assert domain.files is not None
    assert turned.files is not None
    names = {domain.files[i] for i in pacs.official_validation(domain).tolist()}
    assert {turned.files[i] for i in pacs.official_validation(turned).tolist()} == names


def test_a_domain_without_its_official_images_is_refused() -> None:
    files = list(synthetic("photo").files or ())
    files.remove("dog/056_0001")
    wanted = "1 images of the official .* list of 'photo' are not there, such as dog/056_0001; get"
    with pytest.raises(DataError, match=wanted):
        pacs.official_validation(domain_of("photo", files))
    with pytest.raises(DataError, match="171 images of the official"):
        pacs.official_validation(
            Domain("photo", torch.zeros(1, 3, 1, 1).byte(), torch.zeros(1).long())
        )
    with pytest.raises(
        DataError, match="no official list for the domain 'clipart'; there are lists"
    ):
        pacs.official_validation(domain_of("clipart", files))


def test_what_is_published_adds_up() -> None:
    assert pacs.PUBLISHED.counts is not None
    sums = {name: sum(counts) for name, counts in pacs.PUBLISHED.counts.items()}
    assert sums == {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    assert sum(sums.values()) == 9991
    assert list(pacs.PUBLISHED.domains) == sorted(pacs.PUBLISHED.domains)
    assert list(pacs.PUBLISHED.classes) == sorted(pacs.PUBLISHED.classes)


def test_the_known_fault_can_be_left_out(tmp_path: Path) -> None:
    for domain in pacs.PUBLISHED.domains:
        for label in pacs.PUBLISHED.classes:
            (tmp_path / "pacs" / domain / label).mkdir(parents=True)
            Image.new("RGB", (2, 2)).save(tmp_path / "pacs" / domain / label / "1.png")
    Image.new("RGB", (2, 2)).save(tmp_path / "pacs" / f"{pacs.ERROR}.png")
    where = {"root": str(tmp_path / "pacs"), "cache": str(tmp_path / "cache")}
    kept = pacs.build(pacs.Config(size=2, **where))
    left = pacs.build(pacs.Config(size=2, drop_error=True, **where))
    assert kept.names == left.names == pacs.PUBLISHED.domains
    assert [len(domain) for domain in kept.domains] == [7, 7, 7, 8]
    assert [len(domain) for domain in left.domains] == [7, 7, 7, 7]
    assert kept["sketch"].files is not None
    assert pacs.ERROR.removeprefix("sketch/") in kept["sketch"].files
    assert pacs.ERROR.removeprefix("sketch/") not in (left["sketch"].files or ())


def test_settings_survive_plain_data() -> None:
    config = pacs.Config(root="/x", drop_error=True)
    assert from_dict(pacs.Config, to_dict(config)) == config


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> DomainDataset:
    if not (Path(os.environ.get("GENERALIZEFORMER_DATA", "")) / "pacs").exists():
        pytest.skip("GENERALIZEFORMER_DATA names no folder with pacs")
    return pacs.build(pacs.Config(size=32, cache=str(tmp_path_factory.mktemp("cache"))))


@pytest.mark.data
def test_the_real_images_are_as_published(real: DomainDataset) -> None:
    assert pacs.PUBLISHED.counts is not None
    for domain in real.domains:
        counts = tuple(torch.bincount(domain.labels).tolist())
        assert counts == pacs.PUBLISHED.counts[domain.name]
        assert len(pacs.official_validation(domain)) == SIZES[domain.name][1]


@pytest.mark.data
def test_the_real_domains_look_as_they_should(real: DomainDataset) -> None:
    means = {domain.name: domain.images.float().mean() / 255 for domain in real.domains}
    measured = {"art_painting": 0.507, "cartoon": 0.776, "photo": 0.477, "sketch": 0.957}
    assert means == pytest.approx(measured, abs=0.01)
    sketch = real["sketch"].images
    assert (sketch[:, 0].int() - sketch[:, 2].int()).abs().float().mean() < 1  # grey
