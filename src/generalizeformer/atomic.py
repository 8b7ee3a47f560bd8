"""Files that appear whole or not at all, whenever the process is killed."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # where there are no such locks, two processes may do the same work twice
    fcntl = None  # type: ignore[assignment]


LONGEST = 200  # bytes; file systems take 255, and endings and partial files need some of them


def file_name(words: str) -> str:
    """The words as part of a file's name: as they are where they are short, else their beginning and a digest."""
    content = words.encode()
    if len(content) <= LONGEST:
        return words
    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"{content[:80].decode(errors='ignore')}-{digest}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, beside the one meant, which it replaces once it is written."""
    partial = path.with_name(f".{path.name}.partial")
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
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
