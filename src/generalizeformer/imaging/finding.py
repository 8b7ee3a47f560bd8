"""Which image files there are below folders. Opens none of them."""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from generalizeformer.errors import DataError
from generalizeformer.imaging.files import ENDINGS, OTHER_ENDINGS


def _refuse(words: str) -> NoReturn:
    raise DataError(words)


def find_images(paths: Sequence[Path], refuse: Callable[[str], None] = _refuse) -> list[Path]:
    """The named files, and every image below the named folders, in a stable order.

    `refuse` hears of every folder that cannot be searched; where it does not raise, the search goes on without it.
    """
    if not paths:
        raise DataError("no image files or folders were named; name at least one")
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += _inside(path, refuse)
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"{path}: no such file or folder; check the path")
    return found


def _inside(folder: Path, refuse: Callable[[str], None]) -> list[Path]:
    closed: list[str] = []
    images = _below(folder, ENDINGS, lambda error: closed.append(unsearched(str(folder), error)))
    for words in closed:
        refuse(words)
    if not images and not closed:
        others = left_out([folder])
        hint = f"; convert others, such as {others[0].name}, to png" if others else ""
        raise DataError(
            f"{folder}: no images in this folder; images end in {', '.join(ENDINGS)}{hint}"
        )
    return images


def unsearched(root: str, error: OSError) -> str:
    """What to say of a folder at or below the root that the system does not let us search."""
    return (
        f"{error.filename or root}: cannot be searched ({error.strerror}); "
        "check that you may read it"
    )


def _below(folder: Path, endings: tuple[str, ...], closed: Callable[[OSError], None]) -> list[Path]:
    """Every file at any depth whose name ends so, sorted; `closed` hears of folders that cannot be searched."""
    found = [Path(above, n) for above, _, names in os.walk(folder, onerror=closed) for n in names]
    return sorted(p for p in found if p.suffix.lower() in endings and _may_be_read(p))


def _may_be_read(path: Path) -> bool:
    """Whether this is a file, or one that nothing is known of: who reads it is told why."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True


def left_out(paths: Sequence[Path]) -> list[Path]:
    """Images below the named folders that are of kinds which are not read here."""
    folders = [path for path in paths if path.is_dir()]
    return sorted({p for path in folders for p in _below(path, OTHER_ENDINGS, lambda _: None)})
