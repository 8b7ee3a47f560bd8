import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

from generalizeformer import memory

torch.set_num_threads(1)  # operations this small wait longer for a second thread than they run
memory.keep()  # as in every process of the command line


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As users run it: without the shape checks of the test run, which would answer before our own checks do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes folders that may not be read, also for those whom the system lets read everything."""
    closed: set[Path] = set()

    def refusing(ask: Callable[..., Any], itself: bool) -> Callable[..., Any]:
        def asked(path: Any = ".", *words: Any, **named: Any) -> Any:
            if isinstance(path, (str, os.PathLike)):
                place = Path(os.fspath(path))
                if closed & {*place.parents, *([place] if itself else [])}:
                    raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return ask(path, *words, **named)

        return asked

    for name, itself in (("scandir", True), ("stat", False)):
        monkeypatch.setattr(os, name, refusing(getattr(os, name), itself))
    return closed.add
