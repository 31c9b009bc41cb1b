"""SVC's sequential loops for `network`: the Numba kernels, imported when they are called."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gpurbf._stages import count, stage
from gpurbf.backends.threads import parallel_for

# Below so many products one thread is done before a second has started.
_PRODUCTS = 1 << 19
_ROWS = 512
_ALL = np.empty(0, np.uint8)


def all_rows(K: np.ndarray) -> Any:
    """A `smo.Rows` of a matrix (n, n)."""
    from gpurbf.kernels.smo import Rows

    return Rows(K, _ALL, K, 0, 0, 0)


def part_rows(K: np.ndarray, a: slice, b: slice) -> Any:
    """A `smo.Rows` of the rows and columns a, then b, of a matrix (N, N)."""
    from gpurbf.kernels.smo import Rows

    n_a = a.stop - a.start
    n = n_a + b.stop - b.start
    if n == len(K):
        return all_rows(K)
    part, there = np.empty((n, n), K.dtype), np.zeros(n, np.uint8)
    return Rows(part, there, K, a.start, n_a, b.start)


def solve_block(
    rows: Any,
    diagonal: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    beta: np.ndarray,
    f: np.ndarray,
    goal: float,
    max_steps: int,
) -> tuple[int, float, bool]:
    """See :func:`gpurbf.kernels.smo.solve_block`."""
    from gpurbf.kernels import smo

    return smo.solve_block(tuple(rows), diagonal, low, high, beta, f, goal, max_steps)


def begin_pair(
    K: np.ndarray,
    a: slice,
    b: slice,
    diagonal: np.ndarray,
    C: np.ndarray,
    goal: float,
    max_steps: int,
) -> tuple[int, float, bool, np.ndarray, tuple[float, float, float]]:
    """See :func:`gpurbf.kernels.smo.begin_pair`."""
    from gpurbf.kernels import smo

    n_a, n_b = a.stop - a.start, b.stop - b.start
    with stage("output training", "inner steps"):
        found = smo.begin_pair(K, a.start, n_a, b.start, n_b, diagonal, C, goal, max_steps)
        count(operations=12 * found[0] * (n_a + n_b), kind="float64")
    return found


def solve_free(
    rows: Any,
    low: np.ndarray,
    high: np.ndarray,
    beta: np.ndarray,
    f: np.ndarray,
    goal: float,
    most: int,
    values: int,
) -> int:
    """See :func:`gpurbf.kernels.free.solve_free`."""
    from gpurbf.kernels import free

    steps, read = free.solve_free(tuple(rows), low, high, beta, f, goal, most, values)
    count(operations=2 * read, kind="float64", nbytes=rows.K.itemsize * read)
    return steps


def mirror_rows(K: np.ndarray, fresh: slice) -> None:
    """See :func:`gpurbf.kernels.sets.mirror_rows`."""
    from gpurbf.kernels import sets

    sets.mirror_rows(K, fresh.start, fresh.stop)


def open_ends(
    beta: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    f: np.ndarray,
    up: np.ndarray,
    down: np.ndarray,
) -> float:
    """See :func:`gpurbf.kernels.smo.open_ends`."""
    from gpurbf.kernels import smo

    return smo.open_ends(beta, low, high, f, up, down)


def look_ahead(
    points: list[np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    ridge: float,
    point: np.ndarray,
    back: np.ndarray,
) -> tuple[int, float]:
    """See :func:`gpurbf.kernels.sets.look_ahead`; the newest of the three points is first."""
    from gpurbf.kernels import sets

    return sets.look_ahead(*points, low, high, ridge, point, back)


def next_set(
    beta: np.ndarray,
    f: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    diagonal: np.ndarray,
    scratch: np.ndarray,
    previous: np.ndarray,
    newest: slice,
    size: int,
    goal: float,
) -> tuple[float, tuple[np.ndarray, slice, np.ndarray]]:
    """See :func:`gpurbf.kernels.sets.next_set`; which members are new is a slice."""
    from gpurbf.kernels import sets

    last = newest.stop == len(previous)
    violation, members, begin, end, values = sets.next_set(
        beta, f, low, high, diagonal, scratch, previous, last, size, goal
    )
    return violation, (members, slice(begin, end), values)


def pick(numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
    """See :func:`gpurbf.kernels.sets.pick`."""
    from gpurbf.kernels import sets

    return sets.pick(numbers, places)


def remember(point: np.ndarray, beta: np.ndarray, f: np.ndarray) -> None:
    """See :func:`gpurbf.kernels.sets.remember`."""
    from gpurbf.kernels import sets

    sets.remember(point, beta, f)


def put_back(
    members: np.ndarray, inside: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """See :func:`gpurbf.kernels.sets.put_back`."""
    from gpurbf.kernels import sets

    return sets.put_back(members, inside, beta)


def place(
    members: np.ndarray,
    slot_of: np.ndarray,
    owner: np.ndarray,
    used: np.ndarray,
    filled: int,
    clock: int,
    vacant: int,
    final: bool,
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """See :func:`gpurbf.kernels.sets.place`."""
    from gpurbf.kernels import sets

    return sets.place(members, slot_of, owner, used, filled, clock, vacant, final)


def gained(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """See :func:`gpurbf.kernels.smo.gained`."""
    from gpurbf.kernels import smo

    return smo.gained(before, after)


def summary(
    beta: np.ndarray, f: np.ndarray, y: np.ndarray, C: np.ndarray
) -> tuple[float, float, float]:
    """See :func:`gpurbf.kernels.smo.summary`."""
    from gpurbf.kernels import smo

    return smo.summary(beta, f, y, C)


def subtract_rows(
    rows: Any,
    slots: np.ndarray,
    change: np.ndarray,
    f: np.ndarray,
    first: int = 0,
    xp: ModuleType = np,
) -> None:
    """``f -= change @ rows[slots, first : first + len(f)]`` on all free threads, in float64.

    Where the rows are on a device, of library xp, the sums are made there and only they cross.
    """
    from gpurbf.kernels import smo

    if xp is not np:
        total = xp.zeros(len(f))
        there, factors = xp.asarray(slots), xp.asarray(change)
        for start in range(0, len(slots), _ROWS):
            part = slice(start, start + _ROWS)
            total += factors[part] @ rows[there[part]].astype(np.float64)
        f -= total.get()
        return
    n = len(f)
    n_strips = max(1, min(n // smo.COLUMNS, n * len(slots) // _PRODUCTS))

    def task(i: int) -> None:
        begin, end = n * i // n_strips, n * (i + 1) // n_strips
        smo.subtract_rows(rows, first, slots, change, f, begin, end)

    with stage("output training", "gradient"):
        if n_strips > 1:
            parallel_for(task, n_strips)
        else:
            task(0)
        pairs = n * len(slots)
        count(operations=2 * pairs, kind="float64", nbytes=pairs * rows.itemsize + 2 * f.nbytes)
