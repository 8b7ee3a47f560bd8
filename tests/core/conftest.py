from collections.abc import Iterator

import jaxtyping
import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Operations this small wait longer for a second thread than they run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As users run it: without the shape checks of the test run, which would answer before our own checks do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
