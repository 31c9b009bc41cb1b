"""Large arrays of the host whose memory is used once more, where somebody keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gpurbf.runtime.once import Lock

_lock = Lock()
_kept = False
# Nobody uses these; not more than were in use at once.
_idle: list[np.ndarray] = []


@contextmanager
def borrowed(n: int) -> Iterator[np.ndarray]:
    """A float32 array of n numbers or more, whatever they are; it is kept after the block or not.

    Memory that is not written to is not taken.
    """
    with _lock.held:
        largest = max(range(len(_idle)), key=lambda i: len(_idle[i]), default=None)
        array = None if largest is None else _idle.pop(largest)
    if array is None or len(array) < n:
        array = None  # before there is a larger one
        array = np.empty(n, np.float32)
    try:
        yield array
    finally:
        with _lock.held:
            if _kept:
                _idle.append(array)


def keep(kept: bool) -> None:
    """Keep, from now on, what is given back; or nothing."""
    global _kept
    with _lock.held:
        _kept = kept
        if not kept:
            _idle.clear()
