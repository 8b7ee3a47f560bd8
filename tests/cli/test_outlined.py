"""Datasets as plans see them without a file being read: as they are once they were."""

import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from generalizeformer import catalog
from generalizeformer.cli._data import Choice, all_domains, outlined
from generalizeformer.data.datasets import (
    DATASETS,
    living17,
    office_home,
    pacs,
    rotated_fashion_mnist,
    rotated_mnist,
    synthetic,
    terra_incognita,
    vlcs,
)
from generalizeformer.data.domains import DomainDataset
from generalizeformer.errors import DataError

OF_FILES = (pacs, vlcs, office_home, terra_incognita)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GENERALIZEFORMER_DATA", raising=False)
    monkeypatch.setenv("GENERALIZEFORMER_CACHE", str(tmp_path / "cache"))


def plain(told: "tuple[DomainDataset, str | None]") -> Any:
    """What plans are made of."""
    domains, protocol = told
    names = (domains.names, domains.every, domains.kept)
    return domains.name, domains.classes, names, domains.domains[0].shape, protocol


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 8), (200, 100, 0)).save(path)


def without_root(choice: Choice) -> Choice:
    return Choice(
        data=choice.data, protocol=choice.protocol, size=choice.size, settings=choice.settings
    )


@pytest.mark.parametrize("module", OF_FILES)
def test_sets_of_files_are_as_published(module: ModuleType, tmp_path: Path) -> None:
    name, published = module.__name__.rpartition(".")[2], module.PUBLISHED
    for domain in published.domains:
        for label in published.classes:
            picture(tmp_path / "root" / domain / label / "1.png")
    choice = Choice(data=name, root=tmp_path / "root", size=10)
    assert plain(outlined(without_root(choice))) == plain(all_domains(choice))


@pytest.mark.parametrize("protocol", ["good", "bad"])
def test_living17_keeps_its_target(protocol: Any, tmp_path: Path) -> None:
    for (domain, _), ids in living17.breeds(protocol).items():
        for wnid in ids:
            picture(tmp_path / "root" / ("val" if domain == "target" else "train") / wnid / "1.jpg")
    choice = Choice(data="living17", protocol=protocol, root=tmp_path / "root", size=8)
    assert plain(outlined(without_root(choice))) == plain(all_domains(choice))
    assert outlined(without_root(choice))[0].kept == ("target",)


@pytest.mark.parametrize("module", [rotated_mnist, rotated_fashion_mnist])
@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("outer", {}),
        ("inner", {}),
        (None, {"target_angles": (10,)}),
        ("inner", {"target_angles": ()}),
    ],
)
def test_rotated_sets_have_the_angles_asked_for(
    module: ModuleType, protocol: str | None, settings: dict[str, Any], tmp_path: Path
) -> None:
    for half in ("train", "t10k"):
        for name, array in (("images-idx3", np.ones((10, 28, 28))), ("labels-idx1", np.arange(10))):
            header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            content = header + array.astype(np.uint8).tobytes()
            (tmp_path / f"{half}-{name}-ubyte").write_bytes(content)
    name = module.__name__.rpartition(".")[2]
    more = {"per_angle": 10, **settings}
    choice = Choice(data=name, protocol=protocol, root=tmp_path, settings=more)
    assert plain(outlined(without_root(choice))) == plain(all_domains(choice))


def test_every_published_dataset_has_an_outline() -> None:
    for name in catalog.names(DATASETS):
        published = getattr(catalog.load(DATASETS, name), "PUBLISHED", None)
        if published is not None:
            made, _ = outlined(Choice(data=name))
            assert {*made.names} <= {*published.domains}
            assert made.classes == published.classes


def test_what_nobody_published_is_read(tmp_path: Path) -> None:
    for domain in ("old", "new"):
        for label in ("cat", "dog"):
            picture(tmp_path / domain / label / "1.png")
    made, _ = outlined(Choice(data="folder", root=tmp_path, size=8))
    assert (made.names, made.classes) == (("new", "old"), ("cat", "dog"))
    assert int(made["new"].images.max()) > 0
    drawn, _ = outlined(Choice(data="synthetic", settings={"domains": 2}))
    assert plain((drawn, None)) == plain((synthetic.build(synthetic.Config(domains=2)), None))
    with pytest.raises(DataError, match="no root was given"):
        outlined(Choice(data="folder"))


def test_an_outline_takes_no_memory() -> None:
    made, _ = outlined(Choice(data="office_home"))
    for domain in made.domains:
        assert domain.stored.shape == (65, 3, 224, 224)
        assert domain.stored.untyped_storage().nbytes() == 1
        assert domain.labels.tolist() == list(range(65))
