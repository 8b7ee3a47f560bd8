"""`data …`: the datasets that there are, and whether their files are as published."""

import os
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from generalizeformer.cli._data import Choice
from generalizeformer.cli._data_tables import (
    say,
    show_faults,
    show_findings,
    show_list,
    show_module,
    show_published,
    sizes,
)
from generalizeformer.cli._terminal import check_folder, count_progress
from generalizeformer.data.datasets import DATASETS, VARIABLE
from generalizeformer.errors import DataError

if TYPE_CHECKING:
    from generalizeformer.data.storage.published import Published
    from generalizeformer.data.storage.trees import Tree

DRAWN = "synthetic"  # the dataset that is made anew whenever it is asked for

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]


def data() -> None:
    """List, describe, check, prepare and download datasets."""
    # A word for the table of verbs: what follows it is parsed with the table below.


def list_datasets() -> None:
    """List every dataset, and say whether its files are there."""
    from generalizeformer import catalog

    rows = []
    for name in catalog.names(DATASETS):
        module = catalog.load(DATASETS, name)
        published, built = _published(module), None
        if not _has(module, "root"):
            built = module.build(module.Config())
        title = _first_words(module) if published is None else published.title
        numbers = sizes(published, built, getattr(module, "COUNT", None))
        rows.append((name, title, *numbers, _whereabouts(name, module)))
    show_list(rows)
    below = os.environ.get(VARIABLE)
    say(f"searched: {below}" if below else f"searched: nothing, as {VARIABLE} is not set")


def describe(name: Name, /) -> None:
    """Say what is known about a dataset: domains, classes, counts, defects, how to get it.

    Args:
        name: Of the dataset; `data list` has all of them.
    """
    from generalizeformer import catalog
    from generalizeformer.data.storage.download import is_fetchable

    module = catalog.load(DATASETS, name)
    published = _published(module)
    if published is None:
        show_module(module)
    else:
        show_published(published)
        if is_fetchable(name, published):
            say(f"to fetch it: generalizeformer data download {name}")
    place = Path(os.environ.get(VARIABLE) or f"${VARIABLE}") / name
    below = f", in {place}" if published is not None else ""
    say(f"files: {_whereabouts(name, module)}{below}")


def check_files(name: Name, /, root: Path | None = None) -> None:
    """Compare the files of a dataset with what is published, and look at every image.

    Ends with 2 where there are faults.

    Args:
        name: Of the dataset; folder: your own images.
        root: Where the files are: a tree domain/class/image, or zips of one. If not given, the folder of that name
            in $GENERALIZEFORMER_DATA.
    """
    module, config = Choice(data=name, root=root).load()
    if not _has(module, "root"):
        say(f"{name} is {_whereabouts(name, module)}, so there are no files to check")
        return
    where = _root(name, module, config)
    if hasattr(module, "check_files"):
        faults = module.check_files(Path(where))
        show_faults(faults)
    else:
        faults = _findings(module, config, where)
    if faults:
        count = f"{len(faults):,} faults" if len(faults) > 1 else "1 fault"
        raise DataError(f"{name}: {count} in {where}; mend what is named above and check again")
    say(f"{name}: no faults")


def prepare(
    name: Name, /, root: Path | None = None, size: int = 224, cache: Path | None = None
) -> None:
    """Decode all images of a dataset once, so that training and evaluation start at once.

    Work that was stopped goes on where it was.

    Args:
        name: Of the dataset; folder: your own images.
        root: Where the files are: a tree domain/class/image, or zips of one. If not given, the folder of that name
            in $GENERALIZEFORMER_DATA.
        size: Pixels per side.
        cache: Folder for decoded images; if not given, $GENERALIZEFORMER_CACHE or ~/.cache/generalizeformer.
    """
    from generalizeformer.data.storage.cache import Recipe, is_ready, location

    module, config = Choice(data=name, root=root, size=size).load()
    if not _has(module, "cache"):
        say(f"{name} has no large files, so there is nothing to prepare")
        return
    if cache is not None:
        check_folder(cache)
        config = replace(config, cache=str(cache))
    tree = _tree(module, config, _root(name, module, config))
    recipe = Recipe(name=name, size=size, how=getattr(module, "HOW", "squash"))
    ready, started = is_ready(tree, recipe, config.cache), time.perf_counter()
    with count_progress("preparing images") as report:
        module.build(config, report=report)
    taken = time.perf_counter() - started
    place = location(tree, recipe, config.cache)
    size_on_disk = sum(file.stat().st_size for file in place.iterdir()) / 1e6
    how = "ready already" if ready else f"prepared in {taken:.1f} seconds"
    say(f"{name}: {len(tree.entries):,} images, {how}; {size_on_disk:,.1f} MB in {place}")


def download(name: Name, /, root: Path | None = None) -> None:
    """Fetch the files of a dataset, where its licence allows that.

    Args:
        name: Of the dataset.
        root: New folder for the files. If not given, the folder of that name in $GENERALIZEFORMER_DATA, or in ./data.
    """
    from generalizeformer.data.storage.download import download as fetch

    folder = root or Path(os.environ.get(VARIABLE) or "data") / name
    check_folder(folder)
    with count_progress("downloading") as report:
        sentence = fetch(name, folder, report)
    say(sentence)


VERBS: dict[str, Callable[..., None]] = {
    "list": list_datasets,
    "info": describe,
    "check": check_files,
    "prepare": prepare,
    "download": download,
}


def _published(module: ModuleType) -> "Published | None":
    return getattr(module, "PUBLISHED", None)


def _has(module: ModuleType, setting: str) -> bool:
    return setting in {field.name for field in fields(module.Config)}


def _first_words(module: ModuleType) -> str:
    return (module.__doc__ or "").partition(":")[0]


def _whereabouts(name: str, module: ModuleType) -> str:
    if not _has(module, "root"):
        return "drawn when needed" if name == DRAWN else "embedded"
    if _published(module) is None:
        return "yours"
    below = os.environ.get(VARIABLE)
    return "found" if below and (Path(below) / name).exists() else "not found"


def _root(name: str, module: ModuleType, config: Any) -> str:
    """Where the files are, or what to do to have them."""
    from generalizeformer.data.datasets._files import find_root
    from generalizeformer.data.storage import hub

    published = _published(module)
    if published is None and config.root is None:
        raise DataError(f"{name}: give --root, the folder or zip that holds domain/class/image")
    root = find_root(name, config.root)
    if published is not None and not hub.is_table(root) and not os.path.exists(root):
        raise DataError(
            f"{root}: no such folder or file, so {name} is not there; check the path, or get the "
            f"files: {published.obtain}"
        )
    return root


def _tree(module: ModuleType, config: Any, root: str) -> "Tree":
    from generalizeformer.data.storage.trees import scan

    if hasattr(module, "tree"):
        return module.tree(config)  # type: ignore[no-any-return]
    published = _published(module)
    return scan(root, {} if published is None else published.folders)


def _findings(module: ModuleType, config: Any, root: str) -> list[Any]:
    """The faults of a tree of images, after all that was found is printed."""
    from generalizeformer.data.storage.checks import check

    tree, published = _tree(module, config, root), _published(module)
    with count_progress("checking images") as report:
        findings = check(tree, published, report)
    show_findings(findings, published)
    return list(findings.faults)
