from collections.abc import Iterator

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
