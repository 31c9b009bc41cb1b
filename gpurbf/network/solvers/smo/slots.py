"""Which kernel rows are in memory and where: what is kept, what gives way."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gpurbf.backends.loops_smo import place

__all__ = ["LEAST", "Budget", "Slots"]

# Rows that a cache may hold whatever the budget says.
LEAST = 64


class Budget:
    """Bytes that all caches may take; caches that nobody uses give way to the others."""

    def __init__(self, n_bytes: float) -> None:
        self.total = self.free = n_bytes
        # By class, the longest unused first.
        self._idle: dict[int, Any] = {}
        self._lock = threading.Lock()

    def take(self, n_rows: int, row_bytes: int, least: int) -> int:
        """How many of so many rows there is room for, but at least `least`; they count as taken."""
        with self._lock:
            while self.free < n_rows * row_bytes and self._idle:
                self.free += self._idle.pop(next(iter(self._idle))).n_bytes
            granted = min(n_rows, max(least, int(self.free // row_bytes)))
            self.free -= granted * row_bytes
            return granted

    def park(self, key: int, cache: Any) -> None:
        """Keep a cache (it has ``n_bytes``) that nobody uses now, while nobody needs the room."""
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
        """Bytes in a parked cache."""
        cache = self._idle.get(key)
        return 0 if cache is None else cache.n_bytes


class Slots:
    """Places of rows: each belongs to a member or is vacant; the least used give way.

    Members are the n samples of a class and, before or after them, those of the class it is paired
    with.

    Parameters
    ----------
    n : int
    capacity : int
        Slots at the most.
    row_bytes : int
    budget : Budget
        Grants slots when they are first needed.
    """

    def __init__(self, n: int, capacity: int, row_bytes: int, budget: Budget) -> None:
        self.n, self.row_bytes, self.budget = n, row_bytes, budget
        self.filled = 0
        self._slot_of = np.full(n, -1)
        self._own = slice(0, n)
        self._owner = np.full(capacity, -1)
        self._used = np.full(capacity, -1)
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
        """Slots for as many of the members, from the first on, as fit at once.

        Returns
        -------
        slots : ndarray
        missing, where : ndarray
            Members that were in no slot, and the ascending slots that they have now: the caller
            must evaluate these rows.
        """
        self._clock += 1
        wanted, *found = self._place(members, self.filled == len(self._owner))
        if wanted:
            self._grow(wanted)
            _, *found = self._place(members, True)
        slots, missing, where = found
        self._vacant = max(0, self._vacant - len(missing))
        return slots, missing, where

    def _place(self, members: np.ndarray, final: bool) -> Any:
        return place(
            members, self._slot_of, self._owner, self._used,
            self.filled, self._clock, self._vacant, final,
        )  # fmt: skip

    def _grow(self, wanted: int) -> None:
        """Ask the budget for slots where vacant ones do not suffice."""
        room = min(wanted, len(self._owner) - self.filled)
        least = max(0, min(room, LEAST - self.filled))
        granted = self.budget.take(room, self.row_bytes, least)
        self.filled += granted
        self._vacant += granted
