"""Downloading by name: the files of a dataset end as a tree below a root, whole or not at all."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from urllib.parse import urlsplit

from generalizeformer import catalog
from generalizeformer.data.datasets import DATASETS
from generalizeformer.data.storage import fetching
from generalizeformer.data.storage.archives import move_into_place, require_new, unpack
from generalizeformer.data.storage.fetching import NetworkError, Report
from generalizeformer.data.storage.published import Published
from generalizeformer.data.storage.trees import Entry
from generalizeformer.errors import DataError

TORCHVISION = {"rotated_mnist": "MNIST", "rotated_fashion_mnist": "FashionMNIST"}
NOTHING = {
    "digits": "digits: nothing to download, the digits come with the package",
    "synthetic": "synthetic: nothing to download, the images are drawn when they are needed",
    "folder": "folder: nothing to download, these are your own images; name them by --root",
}


def download(name: str, root: Path, report: Report | None = None) -> str:
    """A sentence that says what was done. A module with a `download` of its own is asked first."""
    module = catalog.load(DATASETS, name)
    if name in NOTHING:
        return NOTHING[name]
    published: Published = module.PUBLISHED
    try:
        if hasattr(module, "download"):
            return str(module.download(root, report))
        if name in TORCHVISION:
            return _mirrored(TORCHVISION[name], root)
        return _first_that_works(name, published, root, report)
    except NetworkError as error:
        with suppress(OSError):
            archive_folder(root).rmdir()  # where nothing has arrived yet
        by_hand = f"{published.obtain.rstrip('.')}; the layout is {published.layout}"
        raise DataError(f"{name}: {error}; to place the files by hand: {by_hand}") from None


def is_fetchable(name: str, published: Published) -> bool:
    """Whether `download` has a way to the files; others only a person may get."""
    ways = published.hub or published.drive or published.addresses
    return bool(ways) or name in TORCHVISION


def archive_folder(root: Path) -> Path:
    """The folder beside the root for archives on their way; it is kept until all is done."""
    return root.with_name(f"{root.name}.download")


def fetched(address: str, work: Path, report: Report | None = None) -> Path:
    """The folder that holds the unpacked archive of an address. What an earlier run has done is not done again."""
    file = work / Path(urlsplit(address).path).name
    folder = work / file.name.partition(".")[0]
    if not folder.exists():
        _unpacked(file, folder, lambda: fetching.from_address(address, file, report))
    return folder


def holding(folder: Path, published: Published) -> Path:
    """The folder with the published domains: this one, or one that archives wrap around them."""
    inner = sorted(path for path in folder.glob("*/") if path.is_dir())
    deeper = sorted(path for path in folder.glob("*/*/") if path.is_dir())
    for candidate in (folder, *inner, *deeper):
        there = {published.folders.get(path.name, path.name) for path in candidate.iterdir()}
        if there.issuperset(published.domains):
            return candidate
    found = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
    raise DataError(
        f"the archive holds {found}, but no folder with {', '.join(published.domains)}; it is not the published one"
    )


def _first_that_works(name: str, published: Published, root: Path, report: Report | None) -> str:
    """From the hub, from Google Drive or from an address, in this order; the reasons of all if none works."""
    require_new(root)
    ways: list[Callable[[], str]] = []
    if published.hub:
        ways.append(lambda: _from_hub(published, root, report))
    if published.drive:
        ways.append(lambda: _from_drive(published, root, report))
    if published.addresses:
        ways.append(lambda: _from_address(published, root, report))
    problems = []
    for way in ways:
        try:
            return way()
        except DataError as error:
            problems.append(str(error))
    raise NetworkError("; ".join(dict.fromkeys(problems)) or "it cannot be downloaded")


def _from_hub(published: Published, root: Path, report: Report | None) -> str:
    tree = fetching.from_hub(published)
    entries = [_published_entry(entry, published) for entry in tree.entries]
    beside = root.with_name(f".{root.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)  # what a killed run left
    for done, entry in enumerate(entries, 1):
        place = beside / entry.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(tree.read(entry))
        if report:
            report(done, len(entries))
    move_into_place(beside, root)
    return f"{root}: {len(entries):,} images from hub:{published.hub}"


def _published_entry(entry: Entry, published: Published) -> Entry:
    """The entry under the published names; those of the hub may have spaces or capitals of their own."""
    domains, classes = (
        {_letters(name): name for name in names} for names in (published.domains, published.classes)
    )
    try:
        domain, label = domains[_letters(entry.domain)], classes[_letters(entry.label)]
    except KeyError:
        raise DataError(
            f"hub:{published.hub} has {entry.domain}/{entry.label}, which is not published"
        ) from None
    return replace(entry, domain=domain, label=label, name=PureWindowsPath(entry.name).name)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def _from_drive(published: Published, root: Path, report: Report | None) -> str:
    identity = published.drive or ""
    file = archive_folder(root) / identity
    return _archived(file, lambda: fetching.from_drive(identity, file, report), published, root)


def _from_address(published: Published, root: Path, report: Report | None) -> str:
    """The one archive that holds everything; several need a `download` of the dataset's own."""
    address = published.addresses[0]
    file = archive_folder(root) / Path(urlsplit(address).path).name
    return _archived(file, lambda: fetching.from_address(address, file, report), published, root)


def _archived(file: Path, fetch: Callable[[], None], published: Published, root: Path) -> str:
    count = _unpacked(file, root, fetch, lambda folder: holding(folder, published))
    shutil.rmtree(file.parent)
    return f"{root}: {count:,} files from the published archive"


def _unpacked(
    file: Path,
    folder: Path,
    fetch: Callable[[], None],
    choose: Callable[[Path], Path] | None = None,
) -> int:
    """The number of files unpacked. A file that is no good archive goes, so that the next run fetches it again."""
    if not file.exists():
        fetch()
    try:
        return unpack(file, folder, None, choose)
    except DataError:
        file.unlink()
        raise


def _mirrored(name: str, root: Path) -> str:
    require_new(root / name)
    fetching.from_torchvision(name, root)
    return f"{root / name}: the four files of {name}"
