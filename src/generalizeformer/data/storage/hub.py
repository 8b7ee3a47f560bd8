"""Datasets kept as tables with columns image, domain and label: on the Hugging Face hub, or saved from there.

Needs the optional package `datasets`. Rows look like the files of a folder to whoever asks for them.
"""

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generalizeformer.errors import DataError
from generalizeformer.imaging.files import ENDINGS

PREFIX = "hub:"
COLUMNS = ("image", "domain", "label")
SAVED = ("dataset_info.json", "dataset_dict.json")  # what `save_to_disk` leaves
BEGINNINGS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif"}

Parts = tuple[str, ...]
Row = tuple[Parts, int, str, "TablePlace"]


@dataclass(frozen=True, eq=False)
class TablePlace:
    """A row of a table."""

    table: Any
    row: int

    def __str__(self) -> str:
        return f"row {self.row}"

    def read(self) -> bytes:
        """The bytes as they were when the table was made."""
        image = self.table[self.row]["image"]
        content: bytes | None = image["bytes"]
        return Path(image["path"]).read_bytes() if content is None else content


def is_table(root: Path | str) -> bool:
    """Whether this names a dataset of the hub, or a folder that holds a saved one."""
    folder = Path(root)
    # A `Path` would raise where the folder may not be read, and name a file that was only looked for.
    if str(root).startswith(PREFIX) or any(os.path.isfile(folder / name) for name in SAVED):
        return True
    parts = [part for part in (folder, folder / "data") if os.path.isdir(part)]
    return any(True for part in parts for _ in part.glob("*.parquet"))


def rows(root: Path | str) -> Iterator[Row]:
    """Parts (domain, class, name), size, stamp and place of every row of every split."""
    seen: set[Parts] = set()  # in all splits: each may number its files anew
    for split, table in _splits(str(root)).items():
        missing = [name for name in COLUMNS if name not in table.column_names]
        if missing:
            raise DataError(
                f"{root}: its columns are {', '.join(table.column_names)}; there must be "
                f"{', '.join(COLUMNS)}, so rename or add {', '.join(missing)}"
            )
        yield from _rows(str(root), split, table, seen)


def _splits(root: str) -> dict[str, Any]:
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{root}: reading it needs a package that is not installed; "
            "run: pip install 'generalizeformer[data]'"
        ) from None
    try:
        if any((Path(root) / name).is_file() for name in SAVED):
            loaded = datasets.load_from_disk(root)
        else:
            loaded = datasets.load_dataset(root.removeprefix(PREFIX))
    except Exception as error:  # the package and the network stack below it raise all kinds
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{root}: the dataset cannot be loaded ({first}); check its name and the network, "
            "or get the files by hand and name their folder"
        ) from None
    return dict(loaded) if isinstance(loaded, dict) else {"all": loaded}


def _rows(root: str, split: str, table: Any, seen: set[Parts]) -> Iterator[Row]:
    """Those of one split; where a name is there already, the row's place is its name."""
    images, fingerprint = _undecoded(root, table), table._fingerprint
    domains, labels = (_words(table, column) for column in ("domain", "label"))
    for row, (name, size, ending) in enumerate(_files(images)):
        parts = (domains[row], labels[row], name)
        if parts in seen or not name.lower().endswith(ENDINGS):
            parts = (domains[row], labels[row], f"{split}_{row:06d}{ending}")
        seen.add(parts)
        yield parts, size, f"{fingerprint}/{split}/{row}", TablePlace(images, row)


def _undecoded(root: str, table: Any) -> Any:
    from datasets import Image

    images = table.select_columns(["image"])
    try:
        return images.cast_column("image", Image(decode=False))
    except (TypeError, ValueError, NotImplementedError):
        kind = type(table.features["image"]).__name__
        raise DataError(f"{root}: the column image holds {kind}; it must hold images") from None


def _words(table: Any, column: str) -> list[str]:
    """The values of a column as words: the names of numbered classes, or what is written there."""
    name: Callable[[Any], str] = getattr(table.features[column], "int2str", str)
    return [name(value) for value in table[column]]


def _files(images: Any) -> Iterator[tuple[str, int, str]]:
    """Name, size and fitting ending of every image, without a look at more than its first bytes."""
    compute = importlib.import_module("pyarrow.compute")  # comes with `datasets`
    for batch in images.with_format("arrow").iter(1000):
        content = compute.struct_field(batch["image"], "bytes")
        paths = compute.struct_field(batch["image"], "path").to_pylist()
        sizes = compute.binary_length(content).to_pylist()
        starts = compute.binary_slice(content, 0, 4).to_pylist()
        for path, size, start in zip(paths, sizes, starts, strict=True):
            name = os.path.basename(path or "")
            yield name, os.path.getsize(path) if size is None else size, _ending(start or b"")


def _ending(start: bytes) -> str:
    return next((end for begin, end in BEGINNINGS.items() if start.startswith(begin)), "")
