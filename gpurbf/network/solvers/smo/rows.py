"""Kernel rows in memory: what is kept, what gives way, and the kernel of a pair made of them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gpurbf.backends.arrays import to_host
from gpurbf.backends.loops_smo import subtract_rows

__all__ = ["Budget", "CachedPair", "MatrixPair", "RowCache"]

# Rows evaluated at once where they cannot be written to their final place.
_ROWS = 256
# Rows that a cache may hold whatever the budget says.
_LEAST = 64


class Budget:
    """Bytes that all caches may take; caches that nobody uses give way to the others."""

    def __init__(self, n_bytes: float) -> None:
        self.total = self.free = n_bytes
        # By class, the longest unused first.
        self._idle: dict[int, RowCache] = {}
        self._lock = threading.Lock()

    def take(self, n_rows: int, row_bytes: int, least: int) -> int:
        """How many of so many rows there is room for, but at least `least`; they count as taken."""
        with self._lock:
            while self.free < n_rows * row_bytes and self._idle:
                self.free += self._idle.pop(next(iter(self._idle))).n_bytes
            granted = min(n_rows, max(least, int(self.free // row_bytes)))
            self.free -= granted * row_bytes
            return granted

    def park(self, key: int, cache: RowCache) -> None:
        """Keep a cache that nobody uses now, as long as nobody needs the room."""
        with self._lock:
            self._idle[key] = cache

    def fetch(self, key: int) -> RowCache | None:
        """A parked cache, no longer parked."""
        with self._lock:
            return self._idle.pop(key, None)

    def clear(self) -> None:
        """Forget the parked caches."""
        self._idle.clear()

    def parked(self, key: int) -> int:
        """Bytes in a parked cache."""
        cache = self._idle.get(key)
        return 0 if cache is None else cache.n_bytes


class RowCache:
    """Rows of K over the samples of one class; when there is no room the least used give way.

    A row belongs to a sample of the class itself and is kept for its other pairs, or to one of
    the class that it is paired with now. float32 like LIBSVM's: on a lattice distances are exact
    before, sums are float64 after.

    Parameters
    ----------
    kernel : object
        With ``values`` and ``xp``, the library of the rows: they stay where they are evaluated.
    columns : slice
        The class, as a range of samples.
    budget : Budget
    """

    def __init__(self, kernel: Any, columns: slice, budget: Budget) -> None:
        self.kernel, self.columns, self.budget = kernel, columns, budget
        n = columns.stop - columns.start
        self.row_bytes = 4 * n
        capacity = max(_LEAST, int(budget.total // self.row_bytes))
        capacity = min(capacity, len(kernel.diagonal))
        # Memory of the host that is not written to is not taken; a device's is made as it fills.
        self.rows = kernel.xp.empty((capacity if kernel.xp is np else 0, n), np.float32)
        self.filled = 0
        self._samples = np.arange(columns.start, columns.stop)
        self._slot_of = np.full(n, -1)
        self._owner = np.full(capacity, -1)
        self._used = np.full(capacity, -1)
        self._clock = 0

    @property
    def n_bytes(self) -> int:
        """What it has taken of the budget."""
        return self.filled * self.row_bytes

    def pair_with(self, partner: slice, scratch: Any) -> None:
        """Members are the class's samples from now on, then the partner's; forgets the last one.

        ``scratch`` (float32) is for rows on the way to their places.
        """
        self._scratch = scratch
        n = self.columns.stop - self.columns.start
        slots = self._slot_of[n:]
        slots = slots[slots >= 0]
        self._owner[slots] = self._used[slots] = -1
        self._samples = np.r_[self.columns, partner]
        self._slot_of = np.append(self._slot_of[:n], np.full(len(self._samples) - n, -1))

    def subtract(self, members: np.ndarray, change: np.ndarray, f: np.ndarray) -> None:
        """``f -= change @ K[members]``."""
        start = 0
        while start < len(members):
            slots = self._slots(members[start:])
            part = change[start : start + len(slots)]
            subtract_rows(self.rows, slots, part, f, xp=self.kernel.xp)
            start += len(slots)

    def read(self, members: np.ndarray, out: np.ndarray) -> None:
        """Write K[members] into out."""
        start = 0
        while start < len(members):
            slots = self._slots(members[start:])
            out[start : start + len(slots)] = to_host(self.rows[self.kernel.xp.asarray(slots)])
            start += len(slots)

    def _slots(self, members: np.ndarray) -> np.ndarray:
        """Slots of as many of the members, from the first on, as fit; evaluates what is missing."""
        vacant = int((self._owner[: self.filled] < 0).sum())
        missing = int((self._slot_of[members] < 0).sum()) - vacant
        room = max(0, min(missing, len(self._owner) - self.filled))
        least = max(0, min(room, _LEAST - self.filled))
        self.filled += self.budget.take(room, self.row_bytes, least)
        if self.filled > len(self.rows):
            kept, n_rows = self.rows, min(2 * self.filled, len(self._owner))
            self.rows = self.kernel.xp.empty((n_rows, kept.shape[1]), np.float32)
            self.rows[: len(kept)] = kept
        members = members[: self.filled]
        self._clock += 1
        slots = self._slot_of[members]
        self._used[slots[slots >= 0]] = self._clock
        absent = members[slots < 0]
        if len(absent):
            # Vacant slots come first, in order; then the longest unused.
            oldest = np.argsort(self._used[: self.filled], kind="stable")[: len(absent)]
            oldest.sort()
            evicted = self._owner[oldest]
            self._slot_of[evicted[evicted >= 0]] = -1
            self._evaluate(absent, oldest)
            self._owner[oldest], self._slot_of[absent] = absent, oldest
            self._used[oldest] = self._clock
            slots = self._slot_of[members]
        return slots

    def _evaluate(self, members: np.ndarray, slots: np.ndarray) -> None:
        samples = self._samples[members]
        if slots[-1] - slots[0] == len(slots) - 1:
            self.kernel.values(samples, self.columns, self.rows[slots[0] : slots[-1] + 1])
            return
        n = self.rows.shape[1]
        n_rows = len(self._scratch) // n
        for start in range(0, len(slots), n_rows):
            part = samples[start : start + n_rows]
            rows = self._scratch[: len(part) * n].reshape(len(part), n)
            self.kernel.values(part, self.columns, rows)
            self.rows[self.kernel.xp.asarray(slots[start : start + n_rows])] = rows


class CachedPair:
    """Kernel of a pair out of the row caches of its classes."""

    _scratch: Any

    def __init__(self, kernel: Any, a: slice, b: slice, over_a: RowCache, over_b: RowCache) -> None:
        self.kernel, self.over_a, self.over_b = kernel, over_a, over_b
        self.n_a, self.n_b = a.stop - a.start, b.stop - b.start
        self.samples = np.r_[a, b]
        self.diagonal = kernel.diagonal[self.samples]
        # Memory touched for the first time costs as much as the values in it, so it is kept.
        self._scratch = kernel.xp.empty(_ROWS * max(self.n_a, self.n_b), np.float32)
        over_a.pair_with(b, self._scratch)
        over_b.pair_with(a, self._scratch)
        self._members = np.zeros(0, np.intp)
        self._block = np.zeros((0, 0), np.float32)
        self._spare = self._block

    def block(self, members: np.ndarray) -> np.ndarray:
        """K[members][:, members], float32; evaluated, which is faster than gathering it.

        Members that were the end of the last call's come first and are not evaluated again.
        """
        n, old = len(members), self._members
        kept = len(old) - len(old) // 2
        if not np.array_equal(members[:kept], old[len(old) - kept :]):
            kept = 0
        K = self._spare if self._spare.shape == (n, n) else np.empty((n, n), np.float32)
        K[:kept, :kept] = self._block[len(old) - kept :, len(old) - kept :]
        samples = self.samples[members]
        size = n * (n - kept)
        reused = self.kernel.xp is np and size <= len(self._scratch)
        flat = self._scratch if reused else np.empty(size, np.float32)
        fresh = flat[:size].reshape(n, n - kept)
        self.kernel.values(samples, samples[kept:], fresh)
        K[:, kept:] = fresh
        K[kept:, :kept] = fresh[:kept].T
        self._members, self._block, self._spare = members, K, self._block
        return K

    def whole(self) -> np.ndarray:
        """K of all samples, float32."""
        n_a, n = self.n_a, self.n_a + self.n_b
        K = np.empty((n, n), np.float32)
        self.over_a.read(np.arange(n_a), K[:n_a, :n_a])
        self.over_b.read(np.arange(self.n_b), K[n_a:, n_a:])
        across = np.empty((n_a, self.n_b), np.float32)
        self.kernel.values(self.samples[:n_a], self.over_b.columns, across)
        K[:n_a, n_a:] = across
        K[n_a:, :n_a] = across.T
        return K

    def subtract(self, members: np.ndarray, change: np.ndarray, f: np.ndarray) -> None:
        """``f -= change @ K[members]``."""
        self.over_a.subtract(members, change, f[: self.n_a])
        # Over b, the samples of b come first.
        seen_from_b = np.where(members < self.n_a, members + self.n_b, members - self.n_a)
        self.over_b.subtract(seen_from_b, change, f[self.n_a :])


class MatrixPair:
    """Kernel of a pair as a part of a ready matrix K (N, N) in the solver's order."""

    def __init__(self, K: np.ndarray, diagonal: np.ndarray, a: slice, b: slice) -> None:
        self.K, self.a, self.b = K, a, b
        self.samples = np.r_[a, b]
        self.diagonal = diagonal[self.samples]

    def block(self, members: np.ndarray) -> np.ndarray:
        """K[members][:, members]."""
        samples = self.samples[members]
        return self.K[np.ix_(samples, samples)]

    def whole(self) -> np.ndarray:
        """K of all samples."""
        if len(self.samples) == len(self.K):
            return self.K
        a, b, n_a, n = self.a, self.b, self.a.stop - self.a.start, len(self.samples)
        K = np.empty((n, n), self.K.dtype)
        # Four copies of slices take a tenth of the time of an indexed one.
        K[:n_a, :n_a], K[:n_a, n_a:] = self.K[a, a], self.K[a, b]
        K[n_a:, :n_a], K[n_a:, n_a:] = self.K[b, a], self.K[b, b]
        return K

    def subtract(self, members: np.ndarray, change: np.ndarray, f: np.ndarray) -> None:
        """``f -= change @ K[members]``."""
        n_a, slots = self.a.stop - self.a.start, self.samples[members]
        subtract_rows(self.K, slots, change, f[:n_a], self.a.start)
        subtract_rows(self.K, slots, change, f[n_a:], self.b.start)
