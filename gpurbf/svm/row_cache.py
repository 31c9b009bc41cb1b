"""Kernel rows in memory, and the kernel of a pair made of them."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.memory import scratch
from gpurbf.runtime.stages import count, stage
from gpurbf.svm.kernel_matrix import KernelRows, subtract_rows
from gpurbf.svm.pair_kernel import OPERATIONS_PER_VALUE, EvaluatedPair

round_kernels = lazy_module("gpurbf.svm._round_kernels")
smo_kernels = lazy_module("gpurbf.svm._smo_kernels")
working_set_kernels = lazy_module("gpurbf.svm._working_set_kernels")

# The cost of reading a kernel value, and of writing one, relative to that of an activation.
_READ_COST, _WRITE_COST = 0.25, 0.5
# Rows that a cache may hold whatever the budget says.
MIN_ROWS = 64
# Minimum number of rows of the longest class in a piece of memory, and number of pieces per class
# before a piece gets more rows. (Of shorter rows, one or two do not fit into a piece.)
_MIN_ROWS_PER_PIECE, _PIECES_PER_CLASS = 8, 8


class RowCache:
    """Rows of K over the samples of one class, as many as the budget allows.

    A row belongs to a sample of the class itself, and is kept for the class's other pairs, or to a
    sample of the class that it is paired with now. (Both classes of a single pair are one here.)
    Rows are float32, as in LIBSVM, but quantized distances are exact, and sums are float64. Rows
    stay where they are evaluated, on the host or a device.

    Each row of the budget's memory that the cache has is a slot: it holds the row of a member of
    the pair or is vacant. The longest unused are evicted. Members are the n samples of the class
    and, before or after them, those of the class that it is paired with.

    Parameters
    ----------
    kernel : KernelRows
    columns : slice
        The class, as a range of samples.
    budget : Budget
        Grants pieces of memory when they are first needed.
    memory : ndarray
        Memory of the budget's size.
    """

    def __init__(self, kernel: KernelRows, columns: slice, budget: Budget, memory: Any) -> None:
        # A cycle of caches and budget would keep their memory until garbage is collected.
        self.kernel, self.columns, self.budget = kernel, columns, weakref.proxy(budget)
        self.n = columns.stop - columns.start
        self.rows = memory[: len(memory) // self.n * self.n].reshape(-1, self.n)
        self.pieces: list[int] = []
        # A pair has at most so many members, and a cache takes at most so many rows.
        none = np.full((4, budget.most_rows(self.n)), -1)
        self._slots = working_set_kernels.Slots(*none, np.zeros(3, np.intp))
        self._start = 0  # where the class's own members begin

    def pair_with(self, samples: np.ndarray, start: int) -> None:
        """Make a pair's samples the members; the class's own are those from ``start`` on.

        Rows of the class's own samples stay; slots of its last partner's samples become vacant.
        """
        working_set_kernels.pair_slots(self._slots, self._start, self.n, start)
        self._samples, self._start = samples, start

    def subtract(self, members: np.ndarray, change: np.ndarray, f: np.ndarray) -> None:
        """``f -= change @ K[members]``, for the class's own part of the pair's f."""
        start, f = 0, f[self._start : self._start + self.n]
        while start < len(members):
            self.grow(working_set_kernels.slots_wanted(members[start:], self._slots))
            places, missing, where = working_set_kernels.place(
                members[start:], self._samples, self._slots
            )
            if len(missing):
                self.kernel.values(missing, self.columns, self.rows, where)
            subtract_rows(self.rows, places, change[start : start + len(places)], f)
            start += len(places)

    def grow(self, wanted: int) -> None:
        """Ask the budget for so many more slots."""
        if not wanted:
            return
        row, counts = self._slots.row, self._slots.counts
        filled = int(counts[2])
        pieces, rows = self.budget.take(wanted, self.n, MIN_ROWS - filled)
        self.pieces += pieces
        rows = rows[: len(row) - filled]
        row[filled : filled + len(rows)] = rows
        counts[1:] += len(rows)

    @functools.cached_property
    def compiled(self) -> Any:
        """The rows as compiled rounds take them."""
        layer = self.kernel.class_layer(self.columns)
        return round_kernels.ClassRows(self.rows, self._slots, self.kernel.among.layer_words(layer))


def keeping_pays(kernel: KernelRows, found: float) -> bool:
    """Whether rows should be kept, if that part of those asked for is found in memory."""
    return kernel.cost >= _READ_COST + (1 - found) * (kernel.cost + _WRITE_COST)


class CachedPair(EvaluatedPair):
    """Kernel of a pair, classes a and b, out of row caches.

    If no other pair has these classes, no row is in memory at the beginning, and many are asked for
    only once. Then rows are kept from the first set on of whose rows enough would have been there.

    Parameters
    ----------
    caches : list of RowCache
        Of both classes, or one of all samples of the pair.
    a, b : slice
        The samples of each class.
    rounds : Rounds or None
    capacity : int or None
        How many rows memory holds; None to keep rows from the beginning.
    """

    def __init__(
        self,
        caches: list[RowCache],
        a: slice,
        b: slice,
        rounds: Rounds | None,
        capacity: int | None,
    ) -> None:
        super().__init__(caches[0].kernel, a, b)
        self.caches, self.rounds, self.rounding = caches, rounds, self.kernel.kept_rounding
        for cache, start in zip(caches, (0, self.n_a)):
            cache.pair_with(self.samples, start)
        self.keeping, self._capacity = capacity is None, capacity or 0
        # How many rows were asked for, and how many before each member's was, the last time.
        self._asked, self._last = 0, np.full(0 if self.keeping else len(self.samples), -np.inf)

    def _would_find(self, members: np.ndarray) -> float:
        """The part of these rows that would be in memory if all so far had been kept."""
        found = np.count_nonzero(self._last[members] >= self._asked - self._capacity)
        self._last[members] = self._asked + np.arange(len(members))
        self._asked += len(members)
        return found / max(1, len(members))

    def subtract(self, members: np.ndarray, change: np.ndarray, f: np.ndarray) -> None:
        """``f -= change @ K[members]``."""
        if not self.keeping:
            self.keeping = keeping_pays(self.kernel, self._would_find(members))
        if self.keeping:
            for cache in self.caches:
                cache.subtract(members, change, f)
        else:
            super().subtract(members, change, f)


class Rounds:
    """Rounds of one pair after another in compiled calls without Python's lock, on one thread.

    Parameters
    ----------
    tiles : TilesAmong
        Layers of float32 values.
    needs_no_help : callable
        Whether other threads do more by solving other pairs than by helping with this one.
    """

    def __init__(self, tiles: Any, needs_no_help: Callable[[], bool]) -> None:
        self.needs_no_help, self._tiles = needs_no_help, tiles
        self._K = np.empty(0, np.float32)

    def _make_room(self, samples: np.ndarray) -> None:
        """Make memory for working sets of this many samples, and a layer with as many centers."""
        self._layer = self._tiles.layer(samples)
        columns, plan, self._n_bytes = self._tiles.words()
        self._operations = 2 * int(self._layer.packing.sizes[0])
        self._K = np.empty(len(samples) ** 2, np.float32)
        layer = self._tiles.layer_words(self._layer)
        memory = np.zeros(len(smo_kernels.RowWords._fields), np.intp), np.empty(3)
        kinds = smo_kernels.steps_of, smo_kernels.subtraction_of
        functions = (of(self._K.dtype).address for of in kinds)
        self._block = round_kernels.Block(self._K, columns, layer, plan, *memory, *functions)

    def run(self, pair: Any, numbers: np.ndarray, limits: tuple[Any, ...], state: Any) -> Any:
        """See `_round_kernels.rounds`; caches get the memory that rounds ask for."""
        caches, most = pair.caches, pair.samples[: limits[2]]
        a, b = caches[0].compiled, caches[-1].compiled
        if len(caches) == 1:
            b = b._replace(rows=b.rows[:, :0])
        problem = pair.samples, numbers
        state = *state, np.empty(0, np.intp), np.empty(0), False
        if len(most) ** 2 > len(self._K):  # so never between two calls of a pair
            self._make_room(most)
        _held, memory = scratch(self._n_bytes)
        while True:
            with stage("output training", "rounds"):
                outcome, wanted, inside, work, state = round_kernels.rounds(
                    problem, self._block, a, b, *limits, state, memory
                )
                evaluated, stepped, subtracted = work
                operations = self._operations * evaluated
                count(operations=operations, kind=self._layer.kind.operation.arithmetic)
                count(operations=OPERATIONS_PER_VALUE * stepped + 2 * subtracted, kind="float64")
            if outcome != round_kernels.GROW:
                return outcome, inside, state
            for cache, number in zip(caches, wanted):
                cache.grow(number)

    def block(self, n: int) -> np.ndarray:
        """K between the n members of the last set."""
        return self._K[: n * n].reshape(n, n)


class Budget:
    """Memory of all caches in equal pieces; caches that are not in use give theirs to the others.

    A cache with rows of n numbers sees the memory as a matrix of n columns. Its rows are those that
    lie within its pieces; a row that crosses into another piece is not used. In pieces of 14
    numbers, a cache with pieces 0 and 2 and rows of 5 has rows 0, 1, 6 and 7::

        pieces   |      0      |      1      |      2      |
        rows     |  0 |  1 |  2 |  3 |  4 |  5 |  6 |  7 |

    Parameters
    ----------
    sizes : sequence of int
        Sizes of the classes whose rows are kept.
    n_bytes : float
        Memory for all caches, besides the `MIN_ROWS` rows that each cache in use gets in any case.
    in_use : int
        How many caches are in use at once.
    """

    def __init__(self, sizes: Sequence[int], n_bytes: float, in_use: int) -> None:
        self.longest = longest = max(sizes, default=1)
        rows = n_bytes // (4 * longest) // (_PIECES_PER_CLASS * max(1, len(sizes)))
        rows = int(min(MIN_ROWS + 1, max(_MIN_ROWS_PER_PIECE, rows)))
        self.piece = rows * longest
        # A class has several caches where more are in use than there are classes.
        self._all = sum(sizes)
        most = sum(self._pieces(self.most_rows(n), n) for n in sizes)
        most *= -(-in_use // max(1, len(sizes)))
        self._reserve = in_use * self._pieces(MIN_ROWS, longest)
        n_pieces = int(min(n_bytes // (4 * self.piece), most)) + self._reserve
        self.size = n_pieces * self.piece
        # As many as there may be caches. A growth after the first takes a cache's share of what is
        # free, so that growths are few.
        self._sharers = max(in_use, len(sizes))
        # The piece given back last is taken first: its memory is there.
        self._free = list(range(n_pieces))[::-1]
        # With their classes, the longest unused first.
        self._idle: list[tuple[int, Any]] = []
        self._lock = threading.Lock()

    def most_rows(self, n: int) -> int:
        """The most rows that a cache of a class of n samples has: of these and of a partner."""
        return min(n + self.longest, self._all)

    def _pieces(self, n_rows: int, n: int) -> int:
        return -(-n_rows // (self.piece // n - 1))

    def take(self, n_rows: int, n: int, least: int) -> tuple[list[int], np.ndarray]:
        """Take pieces for ``n_rows`` rows of n numbers, or for as many as fit; pieces and rows.

        There is always room for ``least`` rows.
        """
        pieces: list[int] = []
        rows: list[int] = []
        with self._lock:
            ahead = 0
            if least <= 0:  # it grows once more
                ahead = (len(self._free) - self._reserve) // self._sharers
                ahead = min(ahead, self._pieces(self.most_rows(n), n))
            while len(rows) < n_rows or len(pieces) < ahead:
                while len(self._free) <= self._reserve and self._idle:
                    self._free += self._idle.pop(0)[1].pieces[::-1]
                if len(self._free) <= (self._reserve if len(rows) >= least else 0):
                    break
                pieces.append(i := self._free.pop())
                own = range(-(-i * self.piece // n), (i + 1) * self.piece // n)
                rows += own[: self.most_rows(n)]  # of a small class a piece has many rows
        return pieces, np.array(rows, np.intp)

    def park(self, key: int, cache: Any) -> None:
        """Keep a cache (it has ``pieces``) that is not in use, until its memory is needed."""
        with self._lock:
            self._idle.append((key, cache))

    def fetch(self, key: int) -> Any:
        """The last parked cache of a class, no longer parked; None if there is none."""
        with self._lock:
            for i in reversed(range(len(self._idle))):
                if self._idle[i][0] == key:
                    return self._idle.pop(i)[1]
        return None

    def parked(self, key: int) -> int:
        """How many pieces the parked caches of a class have."""
        with self._lock:
            return sum(len(cache.pieces) for c, cache in self._idle if c == key)
