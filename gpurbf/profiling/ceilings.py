"""What the machine can do at most: arithmetic by kind, and memory; measured once a process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf._stages import FENCES
from gpurbf.backends.peak import limit
from gpurbf.backends.threads import parallel_for, thread_limit

__all__ = ["bandwidth", "compute", "product_rate"]

# Each of the two arrays of a copy is larger than the caches that it must not fit in.
_BYTES = 1 << 27
_RUNS = 20
# A product that takes so long is one of large matrices.
_SECONDS = 0.05


@functools.cache
def compute(kind: str, xp: ModuleType = np) -> float | None:
    """Operations a second of a kind of arithmetic such as ``"float32"``, on all threads.

    On a CPU the instructions of the package's own kernel on registers alone; where that has no
    loop of its own, and on the device of another array library, a product of large matrices. None
    where neither is known.
    """
    found = limit(kind) if xp is np else None
    if found is None and kind in ("float32", "float64"):
        found = product_rate(kind, xp)
    return found


@functools.cache
def bandwidth(xp: ModuleType = np) -> float:
    """Bytes a second, read and written, of a copy larger than the caches."""
    source, target = xp.ones(_BYTES, xp.uint8), xp.zeros(_BYTES, xp.uint8)
    if xp is not np:
        return 2 * _BYTES / _best(lambda: xp.copyto(target, source))
    n = thread_limit()
    bounds = [_BYTES * i // n for i in range(n + 1)]

    def copy(i: int) -> None:
        part = slice(bounds[i], bounds[i + 1])
        np.copyto(target[part], source[part])

    return 2 * _BYTES / _best(lambda: parallel_for(copy, n))


def product_rate(dtype: str, xp: ModuleType = np) -> float:
    """Operations a second of the array library's own product of large matrices."""
    n, seconds = 512, 0.0
    while seconds < _SECONDS:
        n *= 2
        A = xp.ones((n, n), dtype)
        product = functools.partial(xp.matmul, A, A, out=xp.empty_like(A))
        seconds = _best(product, runs=2)
    return 2 * n**3 / _best(product)


def _best(work: Callable[[], Any], runs: int = _RUNS) -> float:
    """Seconds of the fastest run, of a device's work too."""
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        for fence in FENCES:
            fence()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
