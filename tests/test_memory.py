import subprocess
import sys

import pytest

from generalizeformer import memory

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is told")

# Frees a large block and asks for one as large: how many pages does the system have to fill the second time?
TWICE = """
import ctypes, resource
from generalizeformer import memory
if {keep}:
    assert memory.keep()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
size = 64 * 2**20
def fill():
    block = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(block, 1, size)
    libc.free(block)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", TWICE.format(keep=keep)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@on_linux
def test_freed_memory_is_kept_for_the_next_tensor() -> None:
    assert faults(keep=True) < 100 < faults(keep=False)


@on_linux
def test_what_the_user_told_malloc_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert not memory.keep()


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.platform, "system", lambda: "Darwin")
    assert not memory.keep()
