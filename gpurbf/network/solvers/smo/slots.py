"""Which kernel rows are in memory and where: what is kept, what gives way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpurbf.backends.loops_smo import place

__all__ = ["LEAST", "Budget", "Slots"]

# Rows that a cache may hold whatever the budget says.
LEAST = 64
# Rows of the longest class in a piece of memory, at the least, and pieces of each class before
# there are more rows in one: of shorter rows one or two in a piece have no room.
_ROWS, _PIECES = 8, 8


class Budget:
    """Memory of all caches in equal pieces; caches that nobody uses give theirs to the others.

    Rows of n numbers are those of the memory as a matrix of n columns, as far as they lie within
    a cache's pieces.

    Parameters
    ----------
    sizes : sequence of int
        Of the classes whose rows are kept.
    n_bytes : float
        What caches may take together, but for `LEAST` rows of those in use.
    in_use : int
        How many caches are in use at once.
    """

    def __init__(self, sizes: Sequence[int], n_bytes: float, in_use: int) -> None:
        self.total = n_bytes
        longest = max(sizes, default=1)
        all_rows = n_bytes // (4 * longest)
        rows = int(min(LEAST + 1, max(_ROWS, all_rows // (_PIECES * max(1, len(sizes))))))
        self.piece = rows * longest
        # A class has as many rows as samples, and as many more as the largest that it meets.
        most = sum(self._pieces(n + longest, n) for n in sizes)
        self._reserve = in_use * self._pieces(LEAST, longest)
        n_pieces = int(min(n_bytes // (4 * self.piece), most)) + self._reserve
        self.size = n_pieces * self.piece
        # The one given back last is taken first: its memory is there.
        self._free = list(range(n_pieces))[::-1]
        # By class, the longest unused first.
        self._idle: dict[int, Any] = {}
        self._lock = threading.Lock()

    def _pieces(self, n_rows: int, n: int) -> int:
        return -(-n_rows // (self.piece // n - 1))

    def take(self, n_rows: int, n: int, least: int) -> tuple[list[int], np.ndarray]:
        """Pieces for so many rows of n numbers, or for as many as there is room for, and the rows.

        There is room for `least`.
        """
        pieces: list[int] = []
        rows = np.empty(0, np.intp)
        with self._lock:
            while len(rows) < n_rows:
                while len(self._free) <= self._reserve and self._idle:
                    self._free += self._idle.pop(next(iter(self._idle))).pieces[::-1]
                if len(self._free) <= (self._reserve if len(rows) >= least else 0):
                    break
                pieces.append(i := self._free.pop())
                own = np.arange(-(-i * self.piece // n), (i + 1) * self.piece // n)
                rows = np.append(rows, own)
        return pieces, rows

    def park(self, key: int, cache: Any) -> None:
        """Keep a cache (it has ``pieces``) that nobody uses now, while nobody needs the room."""
        with self._lock:
            self._idle[key] = cache

    def fetch(self, key: int) -> Any:
        """A parked cache, no longer parked; None if there is none."""
        with self._lock:
            return self._idle.pop(key, None)

    def clear(self) -> None:
        """Forget the parked caches."""
        self._idle.clear()

    def parked(self, key: int) -> int:
        """How many pieces a parked cache has."""
        cache = self._idle.get(key)
        return 0 if cache is None else len(cache.pieces)


class Slots:
    """Places of rows: each belongs to a member or is vacant; the least used give way.

    Members are the n samples of a class and, before or after them, those of the class it is paired
    with.

    Parameters
    ----------
    n : int
        Numbers of a row, and samples of the class.
    budget : Budget
        Grants slots when they are first needed.
    """

    def __init__(self, n: int, budget: Budget) -> None:
        self.n, self.budget = n, budget
        self.pieces: list[int] = []
        # Of each slot the row of the budget's memory, its member and when that was asked for last.
        self._row = np.empty(0, np.intp)
        self._owner = np.empty(0, np.intp)
        self._used = np.empty(0, np.intp)
        self._slot_of = np.full(n, -1)
        self._own = slice(0, n)
        self._clock = self._vacant = 0

    def pair_with(self, n_partner: int, first: bool) -> None:
        """The class is the first of a pair or not; rows of its last partner's are vacant."""
        own = self._slot_of[self._own].copy()
        self._slot_of[self._own] = -1
        slots = self._slot_of[self._slot_of >= 0]
        self._owner[slots] = self._used[slots] = -1
        self._vacant += len(slots)
        self._own = slice(0, self.n) if first else slice(n_partner, n_partner + self.n)
        self._slot_of = np.full(self.n + n_partner, -1)
        self._slot_of[self._own] = own
        there = np.flatnonzero(own >= 0)
        self._owner[own[there]] = self._own.start + there

    def place(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows for as many of the members, from the first on, as fit at once.

        Returns
        -------
        rows : ndarray
        missing, where : ndarray
            Members that were in none, and the rows that they have now, which the caller must
            evaluate.
        """
        self._clock += 1
        wanted, *found = self._place(members, False)
        if wanted:
            self._grow(wanted)
            _, *found = self._place(members, True)
        slots, missing, where = found
        self._vacant = max(0, self._vacant - len(missing))
        return self._row[slots], missing, self._row[where]

    def _place(self, members: np.ndarray, final: bool) -> Any:
        return place(
            members, self._slot_of, self._owner, self._used,
            len(self._row), self._clock, self._vacant, final,
        )  # fmt: skip

    def _grow(self, wanted: int) -> None:
        """Ask the budget for slots where vacant ones do not suffice."""
        pieces, rows = self.budget.take(wanted, self.n, LEAST - len(self._row))
        self.pieces += pieces
        self._row = np.append(self._row, rows)
        none = np.full(len(rows), -1)
        self._owner, self._used = np.append(self._owner, none), np.append(self._used, none)
        self._vacant += len(rows)
