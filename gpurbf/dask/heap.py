"""Memory that arrays give back is kept while a task runs, on Linux."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["kept_heap"]

# glibc's names and, of an array's size from which on it is mapped by itself, its default.
_TRIM, _MAP, _MAP_FROM = -1, -3, 128 << 10
# What glibc allows at the most, and twice that, as it chooses itself where nobody sets anything.
_KEPT = 32 << 20
_set_by_dask = "MALLOC_TRIM_THRESHOLD_"

_lock = threading.Lock()
_running = 0


@contextmanager
def kept_heap() -> Iterator[None]:
    """Undo, for as long as a task runs, what Dask's nanny does to its workers' memory.

    It sets a variable by which they give back what is free at once. That also ends the rule by
    which glibc stops to map new memory for each array beyond 128 KiB, and each of its pages takes
    about as long to appear as what is done in it. Afterwards all goes back, in one step.
    """
    global _running
    libc = ctypes.CDLL(None) if _set_by_dask in os.environ else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    with _lock:
        _running += 1
        libc.mallopt(_MAP, _KEPT)
        libc.mallopt(_TRIM, 2 * _KEPT)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                libc.mallopt(_MAP, int(os.environ.get("MALLOC_MMAP_THRESHOLD_", _MAP_FROM)))
                libc.mallopt(_TRIM, int(os.environ[_set_by_dask]))
                libc.malloc_trim(0)
