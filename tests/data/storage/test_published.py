"""The tables of the published datasets, and that files laid out like them are read."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torchvision.io import encode_jpeg

from generalizeformer.data.datasets import office_home, terra_incognita, vlcs

DATASETS = (vlcs, office_home, terra_incognita)
every = pytest.mark.parametrize("module", DATASETS, ids=lambda module: module.PUBLISHED.title)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENERALIZEFORMER_CACHE", str(tmp_path / "cache"))


def image(shade: int) -> bytes:
    pixels = torch.full((3, 6, 10), shade, dtype=torch.uint8)
    return bytes(encode_jpeg(pixels, quality=100).tolist())


def laid_out(root: Path, module: ModuleType, folder: Callable[[str], str] = str) -> Path:
    """One image for every class of every domain, whose shade is twice the label."""
    for domain in module.PUBLISHED.domains:
        for label, name in enumerate(module.PUBLISHED.classes):
            place = root / domain / folder(name)
            place.mkdir(parents=True)
            (place / f"{label}.jpg").write_bytes(image(2 * label))
    return root


@every
def test_the_tables_fit_their_domains_and_classes(module: ModuleType) -> None:
    published = module.PUBLISHED
    assert tuple(published.counts) == published.domains
    for counts in published.counts.values():
        assert len(counts) == len(published.classes)
        assert min(counts) > 0
    # The order of folders is that of numbers, which is what all published results assume.
    assert list(published.classes) == sorted(published.classes)
    assert list(published.domains) == sorted(published.domains)


@pytest.mark.parametrize(
    ("module", "domains", "total"),
    [
        (vlcs, [1415, 2656, 3282, 3376], 10_729),
        (office_home, [2427, 4365, 4439, 4357], 15_588),
        (terra_incognita, [4879, 9767, 4020, 6122], 24_788),
    ],
)
def test_the_counts_add_up_to_the_published_totals(
    module: ModuleType, domains: list[int], total: int
) -> None:
    counts = module.PUBLISHED.counts
    assert [sum(counts[name]) for name in module.PUBLISHED.domains] == domains
    assert sum(domains) == total


@pytest.mark.parametrize(
    ("module", "totals"),
    [
        (vlcs, [667, 2963, 1670, 559, 4870]),
        (terra_incognita, [219, 2172, 2546, 1767, 969, 1663, 7605, 2127, 4604, 1116]),
    ],
)
def test_the_counts_add_up_by_class_as_well(module: ModuleType, totals: list[int]) -> None:
    assert [sum(column) for column in zip(*module.PUBLISHED.counts.values(), strict=True)] == totals


def test_office_home_has_65_classes_with_capitals_before_small_letters() -> None:
    classes = office_home.PUBLISHED.classes
    assert len(classes) == 65
    assert (classes[0], classes[58], classes[59], classes[64]) == (
        *("Alarm_Clock", "TV", "Table", "Webcam"),
    )
    counts = office_home.PUBLISHED.counts or {}
    least = {domain: (min(row), classes[row.index(min(row))]) for domain, row in counts.items()}
    assert least == {
        "Art": (15, "Drill"),
        "Clipart": (39, "ToothBrush"),
        "Product": (38, "Postit_Notes"),
        "Real World": (23, "Marker"),
    }
    assert max(max(row) for row in counts.values()) == 99


def test_terra_incognita_has_two_versions_of_which_the_counts_are_the_first() -> None:
    published = terra_incognita.PUBLISHED
    versions = list(zip(*published.totals.values(), strict=True))
    assert [sum(version) for version in versions] == [24_788, 24_330]
    assert versions[0] == tuple(sum(row) for row in (published.counts or {}).values())


def test_the_images_with_two_labels_are_found_by_the_start_of_their_names() -> None:
    patterns = [defect.files for defect in terra_incognita.PUBLISHED.defects]
    assert [len(files) for files in patterns] == [2, 2, 2, 2]
    stem = "location_46/opossum/59d750d8-23d2-11e8-a6a3-ec086b02610b"
    matching = [pattern for files in patterns for pattern in files if fnmatchcase(stem, pattern)]
    assert matching == ["location_46/opossum/59d750d8-*"]


@every
def test_files_in_the_published_layout_become_the_dataset(
    module: ModuleType, tmp_path: Path
) -> None:
    config = module.Config(root=str(laid_out(tmp_path / "tree", module)), size=4)
    dataset = module.build(config)
    assert dataset.names == module.PUBLISHED.domains
    assert dataset.classes == module.PUBLISHED.classes
    for domain in dataset.domains:
        assert sorted(domain.labels.tolist()) == list(range(len(dataset.classes)))
        assert domain.shape == (3, 4, 4)
        shades = domain.images[:, 0, 0, 0].long()
        assert (shades - 2 * domain.labels).abs().max() < 2  # so labels belong to their images


@every
def test_a_missing_class_is_refused_because_it_would_shift_the_labels(
    module: ModuleType, tmp_path: Path
) -> None:
    root = laid_out(tmp_path / "tree", module)
    domain, label = module.PUBLISHED.domains[1], module.PUBLISHED.classes[2]
    (root / domain / label / "2.jpg").unlink()
    with pytest.raises(ValueError, match=f"domain '{domain}' has no class '{label}'"):
        module.build(module.Config(root=str(root), size=4))


def test_terra_incognita_reads_landscape_as_empty(tmp_path: Path) -> None:
    def renamed(name: str) -> str:
        return "landscape" if name == "empty" else name

    root = laid_out(tmp_path / "tree", terra_incognita, renamed)
    config = terra_incognita.Config(root=str(root), size=4)
    tree = terra_incognita.tree(config)
    assert [entry.path for entry in tree.entries] == sorted(entry.path for entry in tree.entries)
    for domain in terra_incognita.build(config).domains:
        empty = domain.images[domain.labels == 5]
        assert (empty.long() - 10).abs().max() < 2
        assert "empty/5" in (domain.files or ())


def test_the_wrapping_and_the_tables_of_office_home_are_no_domains(tmp_path: Path) -> None:
    inner = laid_out(tmp_path / "tree" / "OfficeHomeDataset_10072016", office_home)
    (inner / "ImageInfo.csv").write_text("a,b\n")
    config = office_home.Config(root=str(tmp_path / "tree"), size=4)
    assert office_home.build(config).names == ("Art", "Clipart", "Product", "Real World")
