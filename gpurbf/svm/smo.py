"""SVC's sequential loops: Numba kernels on the arrays of a pair, and how threads share them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for

free_cg_kernels = lazy_module("gpurbf.svm._free_cg_kernels")
smo_kernels = lazy_module("gpurbf.svm._smo_kernels")
working_set_kernels = lazy_module("gpurbf.svm._working_set_kernels")


# Below so many products one thread is done before a second has started.
_PRODUCTS = 1 << 19
_ROWS = 512
_ALL = np.empty(0, np.uint8)


def all_rows(K: np.ndarray) -> Any:
    """A `smo.Rows` of a matrix (n, n)."""

    return smo_kernels.Rows(K, _ALL, K, 0, 0, 0)


def part_rows(K: np.ndarray, a: slice, b: slice) -> Any:
    """A `smo.Rows` of the rows and columns a, then b, of a matrix (N, N)."""

    n_a = a.stop - a.start
    n = n_a + b.stop - b.start
    if n == len(K):
        return all_rows(K)
    part, there = np.empty((n, n), K.dtype), np.zeros(n, np.uint8)
    return smo_kernels.Rows(part, there, K, a.start, n_a, b.start)


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
    """See :func:`gpurbf.svm._smo_kernels.solve_block`."""

    return smo_kernels.solve_block(tuple(rows), diagonal, low, high, beta, f, goal, max_steps)


def begin_pair(
    K: np.ndarray,
    a: slice,
    b: slice,
    diagonal: np.ndarray,
    C: np.ndarray,
    goal: float,
    max_steps: int,
) -> tuple[int, float, bool, np.ndarray, tuple[float, float, float]]:
    """See :func:`gpurbf.svm._smo_kernels.begin_pair`."""

    n_a, n_b = a.stop - a.start, b.stop - b.start
    with stage("output training", "inner steps"):
        found = smo_kernels.begin_pair(K, a.start, n_a, b.start, n_b, diagonal, C, goal, max_steps)
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
    """See :func:`gpurbf.svm._free_cg_kernels.solve_free`."""

    steps, read = free_cg_kernels.solve_free(tuple(rows), low, high, beta, f, goal, most, values)
    count(operations=2 * read, kind="float64", nbytes=rows.K.itemsize * read)
    return steps


def mirror_rows(K: np.ndarray, fresh: slice) -> None:
    """See :func:`gpurbf.svm._working_set_kernels.mirror_rows`."""

    working_set_kernels.mirror_rows(K, fresh.start, fresh.stop)


def kkt_violation(
    beta: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    f: np.ndarray,
    up: np.ndarray,
    down: np.ndarray,
) -> float:
    """See :func:`gpurbf.svm._smo_kernels.kkt_violation`."""

    return smo_kernels.kkt_violation(beta, low, high, f, up, down)


def look_ahead(
    points: list[np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    ridge: float,
    point: np.ndarray,
    back: np.ndarray,
) -> tuple[int, float]:
    """See :func:`gpurbf.svm._working_set_kernels.look_ahead`; the newest point is first."""

    return working_set_kernels.look_ahead(*points, low, high, ridge, point, back)


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
    """See :func:`gpurbf.svm._working_set_kernels.next_set`; which members are new is a slice."""

    last = newest.stop == len(previous)
    violation, members, begin, end, values = working_set_kernels.next_set(
        beta, f, low, high, diagonal, scratch, previous, last, size, goal
    )
    return violation, (members, slice(begin, end), values)


def pick(numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
    """See :func:`gpurbf.svm._working_set_kernels.pick`."""

    return working_set_kernels.pick(numbers, places)


def remember(point: np.ndarray, beta: np.ndarray, f: np.ndarray) -> None:
    """See :func:`gpurbf.svm._working_set_kernels.remember`."""

    working_set_kernels.remember(point, beta, f)


def scatter(
    members: np.ndarray, inside: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """See :func:`gpurbf.svm._working_set_kernels.scatter`."""

    return working_set_kernels.scatter(members, inside, beta)


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
    """See :func:`gpurbf.svm._working_set_kernels.place`."""

    return working_set_kernels.place(members, slot_of, owner, used, filled, clock, vacant, final)


def objective_gain(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """See :func:`gpurbf.svm._smo_kernels.objective_gain`."""

    return smo_kernels.objective_gain(before, after)


def kkt_summary(
    beta: np.ndarray, f: np.ndarray, y: np.ndarray, C: np.ndarray
) -> tuple[float, float, float]:
    """See :func:`gpurbf.svm._smo_kernels.kkt_summary`."""

    return smo_kernels.kkt_summary(beta, f, y, C)


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

    if xp is not np:
        total = xp.zeros(len(f))
        there, factors = xp.asarray(slots), xp.asarray(change)
        for start in range(0, len(slots), _ROWS):
            part = slice(start, start + _ROWS)
            total += factors[part] @ rows[there[part]].astype(np.float64)
        f -= total.get()
        return
    n = len(f)
    n_strips = max(1, min(n // smo_kernels.COLUMNS, n * len(slots) // _PRODUCTS))

    def task(i: int) -> None:
        begin, end = n * i // n_strips, n * (i + 1) // n_strips
        smo_kernels.subtract_rows(rows, first, slots, change, f, begin, end)

    with stage("output training", "gradient"):
        if n_strips > 1:
            parallel_for(task, n_strips)
        else:
            task(0)
        pairs = n * len(slots)
        count(operations=2 * pairs, kind="float64", nbytes=pairs * rows.itemsize + 2 * f.nbytes)
