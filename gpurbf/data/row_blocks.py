"""Blocks of rows that fit the memory budget or a cache; a mapped file is read a block ahead."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, TypeVar

import numpy as np

from gpurbf.runtime.config import working_bytes
from gpurbf.runtime.threads import Call, start

_LEAST_ROWS = 64
# Starting a thread takes about 1 ms while others compute, as long as reading 4 MB from a disk.
# Smaller parts are not read ahead.
_LEAST_BYTES = 1 << 22
_TILE = 1 << 20  # bytes that stay in cache while they are worked on


def rows_of_tile(row_bytes: int) -> int:
    """Number of rows that stay in cache while they are worked on, at least 1."""
    return max(1, _TILE // max(1, row_bytes))


def on_disk(X: Any) -> bool:
    """Whether X (N, n) is an array, or a view of one, whose memory is a mapped file."""
    while isinstance(X, np.ndarray):
        X = X.base
    return isinstance(X, mmap.mmap)


def split(X: Any, row_bytes: float) -> list[slice]:
    """Split the rows of X: at ``row_bytes`` per row, a part fills at most a quarter of the budget.

    Two parts of a mapped file, the one in use and the next, fill at most another quarter.
    """
    quarter = working_bytes() / 4
    rows = quarter / row_bytes if row_bytes else max(1, X.shape[0])
    if on_disk(X):
        rows = min(rows, quarter / 2 / max(1, X.itemsize * X.shape[1]))
    step = max(_LEAST_ROWS, int(rows))
    return [slice(i, min(i + step, X.shape[0])) for i in range(0, X.shape[0], step)]


def read_ahead(X: Any, parts: Sequence[slice]) -> Iterator[tuple[slice, Any]]:
    """Each part and its rows of X, in order.

    While the caller works on a part of a mapped file, a thread reads the next one, so that no tile
    waits for the disk. If no thread can be started, tiles do.
    """
    # Rows that are not contiguous in the file have pages between them that are not needed.
    ahead = len(parts) > 1 and on_disk(X) and X.flags.c_contiguous
    ahead = ahead and X[parts[0]].nbytes >= _LEAST_BYTES
    reading = start(Call(partial(read, X[parts[0]]))) if ahead else None
    for part, following in zip(parts, [*parts[1:], None]):
        if reading is not None:
            reading.wait()
            if reading.error is not None:
                raise reading.error
            reading = start(Call(partial(read, X[following]))) if following else None
        yield part, X[part]


def read(X: np.ndarray) -> None:
    """Bring contiguous X into memory: one byte of each page is read, without the GIL."""
    X.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max(initial=0)


Result = TypeVar("Result")


def over_rows(
    task: Callable[..., Result],
    merge: Callable[[Result, Result], Result],
    X: Any,
    y: Any = None,
    weights: Any = None,
    *,
    rows: int,
    name: str,
) -> Result:
    """Merge the results of ``task(X, y, weights, first)`` for parts of the rows.

    Parameters
    ----------
    task : callable
        Called with some rows, their labels and weights (each may be None), and the number of the
        first row.
    merge : callable
        Called with the results of two parts, in any order.
    X, y, weights
        Arrays. If X is an object that holds all three, its ``over_rows(task, merge, name)`` does
        the work, and tasks get all that it holds.
    rows : int
        Number of rows of a part of an array.
    name : str
        Name of the tasks, for monitoring.
    """
    if hasattr(X, "over_rows"):
        return X.over_rows(task, merge, name)

    def part(start: int) -> Result:
        some = slice(start, start + rows)
        own = (None if values is None else values[some] for values in (y, weights))
        return task(X if X.shape[0] <= rows else X[some], *own, start)  # of CSR it is a copy

    return reduce(merge, map(part, range(0, max(1, X.shape[0]), rows)))
