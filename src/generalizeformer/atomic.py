"""Files that appear whole or not at all, whenever the process is killed."""

import glob
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # where there are no such locks, two processes may do the same work twice
    fcntl = None  # type: ignore[assignment]


LONGEST = 200  # bytes; file systems take 255, and endings and partial files need some of them
STALE = 24 * 3600  # seconds; nobody writes a file for so long, whatever machine he is on


def file_name(words: str) -> str:
    """The words as part of a file's name: as they are where they are short, else their beginning and a digest."""
    content = words.encode()
    if len(content) <= LONGEST:
        return words
    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"{content[:80].decode(errors='ignore')}-{digest}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, beside the one meant, which it replaces once it is written.

    Whoever else writes the same file has another one; the last to finish stays.
    """
    _tidy(path)
    writer = f"{os.getpid()}-{threading.get_ident()}"
    partial = path.with_name(f".{file_name(path.name)}.{writer}.partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode
        yield partial
        with suppress(OSError):  # some file systems have no modes
            partial.chmod(mode)  # some writers let nobody else read
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    os.replace(partial, path)


def _tidy(path: Path) -> None:
    """Takes away what writers of this file have left who were killed long ago."""
    for left in path.parent.glob(f".{glob.escape(file_name(path.name))}.*-*.partial"):
        with suppress(OSError):  # somebody else was faster
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()


def write_text(path: Path, text: str) -> None:
    """The text as a file; folders above it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(text, "utf-8")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps other processes that want to be alone in this folder waiting. The system ends it with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as held:
        if fcntl is not None:
            with suppress(OSError):  # some network disks know no locks: as where there are none
                fcntl.flock(held, fcntl.LOCK_EX)
        yield
