"""Memory that arrays give back is kept while a task runs, on Linux."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpurbf.runtime.once import Lock
from gpurbf.runtime.reused import keep

# glibc's names: from which size on an array is mapped by itself, and what is free at the end of the
# heap goes back. The most of the first, and twice that, as glibc chooses where nobody sets any.
_MAP_FROM, _TRIM_FROM, _KEPT = -3, -1, 32 << 20
# The variables that set them; Dask's nanny sets the second. The first is 128 KiB else.
_MAP_VARIABLE, _TRIM_VARIABLE = "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"

# Seconds without a task after which it goes back: those of one fit follow each other sooner, and a
# next fit may. Dask takes a worker's memory that it does not know for recent for thirty.
_IDLE = 10.0

_lock = Lock()
_running = 0
# Gives all back when its time has come; None if there is nothing to give.
_waiting: threading.Timer | None = None


@contextmanager
def kept_heap() -> Iterator[None]:
    """Undo, until tasks have ended, what Dask's nanny does to its workers' memory.

    It sets a variable by which they give back what is free at once. That also ends the rule by
    which glibc stops to map new memory for each array beyond 128 KiB, and each of its pages takes
    about as long to appear as what is done in it. What SVC keeps kernel rows in is lent to the next
    task. When none has come for ten seconds all goes back, in one step.
    """
    global _running, _waiting
    libc: Any = None
    if sys.platform == "linux" and _TRIM_VARIABLE in os.environ:
        libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):  # another C library
        yield
        return
    map_from = int(os.environ.get(_MAP_VARIABLE, "131072"), 0)
    trim_from = int(os.environ[_TRIM_VARIABLE], 0)

    def give_back() -> None:
        global _waiting
        with _lock.held:
            if not _running:
                libc.mallopt(_MAP_FROM, map_from)
                libc.mallopt(_TRIM_FROM, trim_from)
                keep(False)
                libc.malloc_trim(0)
                _waiting = None

    with _lock.held:
        _running += 1
        if _waiting is not None:
            _waiting.cancel()
        keep(True)
        libc.mallopt(_MAP_FROM, max(_KEPT, map_from))
        libc.mallopt(_TRIM_FROM, max(2 * _KEPT, trim_from))
    try:
        yield
    finally:
        with _lock.held:
            _running -= 1
            if not _running:
                _waiting = threading.Timer(_IDLE, give_back)
                _waiting.daemon = True
                _waiting.start()
