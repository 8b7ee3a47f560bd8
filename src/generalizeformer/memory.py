"""Memory that a process keeps for its next tensor.

Of glibc, every large tensor is a new mapping, and the system fills each page of it with zeros before it is used for the
first time: on CPUs that takes longer than most operations on the tensor. A process that only computes does better to
keep what it has freed.
"""

import ctypes
import os
import platform

# Of malloc.h: what lies free at the end of the heap is never given back; it grows by so many bytes at a time; no
# tensor is a mapping of its own; and all threads share one heap.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
KEPT = {TRIM_THRESHOLD: -1, TOP_PAD: 64 * 2**20, MMAP_MAX: 0, ARENA_MAX: 1}


def keep() -> bool:
    """Tells this process to keep its memory; whether it could be told. Not where $MALLOC_… says something already."""
    if platform.system() != "Linux" or any(n.startswith("MALLOC_") for n in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and all(mallopt(name, value) for name, value in KEPT.items())
