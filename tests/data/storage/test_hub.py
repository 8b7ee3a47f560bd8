import builtins
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

from generalizeformer.data.storage import hub
from generalizeformer.data.storage.trees import scan
from generalizeformer.errors import DataError

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is downloaded, and nothing is left in the home folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def picture(shade: int, ending: str = "png") -> bytes:
    held = io.BytesIO()
    Pillow.new("RGB", (4, 4), (shade, shade, shade)).save(held, ending)
    return held.getvalue()


def table(named: bool = True, label: Any = None) -> Any:
    """Six rows of two domains and two classes, neither in order."""
    rows = [
        {
            "image": {"bytes": picture(row), "path": f"pic_{row}.png" if named else None},
            "domain": "ba"[row % 2],
            "label": (row // 2) % 2 if label is None else ("cat", "dog")[(row // 2) % 2],
        }
        for row in range(6)
    ]
    features = datasets.Features(
        image=datasets.Image(),
        domain=datasets.Value("string"),
        label=label or datasets.ClassLabel(names=["cat", "dog"]),
    )
    return datasets.Dataset.from_list(rows, features)


PATHS = [
    *("a/cat/pic_1.png", "a/cat/pic_5.png", "a/dog/pic_3.png"),
    *("b/cat/pic_0.png", "b/cat/pic_4.png", "b/dog/pic_2.png"),
]


def saved(root: Path) -> Path:
    table().save_to_disk(str(root))
    return root


def saved_splits(root: Path) -> Path:
    whole = table()
    parts = {"train": whole.select([4, 0, 2]), "test": whole.select([1, 3, 5])}
    datasets.DatasetDict(parts).save_to_disk(str(root))
    return root


def parquet(root: Path) -> Path:
    (root / "data").mkdir(parents=True)
    table().to_parquet(str(root / "data" / "train-00000-of-00001.parquet"))
    return root


def words(root: Path) -> Path:
    table(label=datasets.Value("string")).save_to_disk(str(root))
    return root


@pytest.mark.parametrize("save", [saved, saved_splits, parquet, words])
def test_a_saved_table_is_a_tree_of_the_same_files(tmp_path: Path, save: Any) -> None:
    root = save(tmp_path / "table")
    tree = scan(root)
    assert [entry.path for entry in tree.entries] == PATHS
    shades = [int(entry.name[4]) for entry in tree.entries]
    assert [tree.read(entry) for entry in tree.entries] == [picture(shade) for shade in shades]
    assert [entry.size for entry in tree.entries] == [len(picture(shade)) for shade in shades]
    assert tree.key() == scan(root).key()


def test_the_key_follows_the_table(tmp_path: Path) -> None:
    saved(tmp_path / "first")
    table().select([0, 1, 2, 3, 5, 4]).save_to_disk(str(tmp_path / "second"))
    assert scan(tmp_path / "first").key() != scan(tmp_path / "second").key()


def test_images_without_names_are_numbered(tmp_path: Path) -> None:
    table(named=False).save_to_disk(str(tmp_path / "table"))
    tree = scan(tmp_path / "table")
    assert [entry.name for entry in tree.entries[:2]] == ["all_000001.png", "all_000005.png"]
    assert tree.read(tree.entries[1]) == picture(5)


def test_names_that_repeat_in_another_split_are_numbered(tmp_path: Path) -> None:
    whole = table()
    parts = {"train": whole.select([1, 3]), "test": whole.select([3, 1, 5])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "table"))
    tree = scan(tmp_path / "table")
    assert [entry.path for entry in tree.entries] == [
        *("a/cat/pic_1.png", "a/cat/pic_5.png", "a/cat/test_000001.png"),
        *("a/dog/pic_3.png", "a/dog/test_000000.png"),
    ]
    assert [tree.read(entry) for entry in tree.entries] == [*map(picture, (1, 5, 1, 3, 3))]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    table().rename_column("domain", "style").save_to_disk(str(tmp_path / "table"))
    wanted = (
        "its columns are image, style, label; there must be image, domain, label, .* add domain$"
    )
    with pytest.raises(DataError, match=wanted):
        scan(tmp_path / "table")


def test_a_column_of_no_images_is_refused(tmp_path: Path) -> None:
    plain = table().remove_columns("image").add_column("image", [1] * 6)
    plain.save_to_disk(str(tmp_path / "table"))
    with pytest.raises(DataError, match="the column image holds Value; it must hold images"):
        scan(tmp_path / "table")


def test_a_hub_that_cannot_be_reached_is_told_in_one_line() -> None:
    with pytest.raises(
        DataError, match=r"^hub:nobody/nothing: the dataset cannot be loaded"
    ) as told:
        scan("hub:nobody/nothing")
    assert "check its name and the network, or get the files by hand" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"run: pip install 'generalizeformer\[data\]'$"):
        scan("hub:flwrlabs/pacs")


def test_plain_folders_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "photo").mkdir()
    assert not hub.is_table(tmp_path)
    assert not hub.is_table(tmp_path / "nothing")
    assert hub.is_table("hub:flwrlabs/pacs")
