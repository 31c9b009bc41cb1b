"""Where the last two changes of beta lead: steps that need next to no kernel values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpurbf.svm.smo import look_ahead, remember

# Samples that share what is left of sum(beta) after others were put back to their bounds.
_SHARERS = 16
# So that two changes in nearly one direction have a best point.
_RIDGE = 1e-6


class Ahead(NamedTuple):
    """A point (2, n) of beta and f; f misses the rows of `members`, which change by `change`."""

    point: np.ndarray
    members: np.ndarray
    change: np.ndarray


class TwoStep:
    """The plane through the last three points: what a change did to f says what more of it does.

    Where C is large, a working set undoes a part of what the sets before it did, and the sets
    creep along a valley. As with conjugate gradients the best point of the plane that the last
    two changes span is far ahead (inside SMO: Torres-Barrán, Alaíz, Dorronsoro, "Faster SVM
    training via conjugate SMO", 2021); samples that are beyond their bounds there are put back.
    """

    def __init__(self, n: int) -> None:
        # beta and f of the last points, the newest first.
        self._points = [np.zeros((2, n)) for _ in range(3)]
        self._known = 0

    @property
    def newest(self) -> np.ndarray:
        """The last point."""
        return self._points[0]

    def forget(self) -> None:
        """Forget the changes that were remembered."""
        self._known = 0

    def add(self, beta: np.ndarray, f: np.ndarray) -> None:
        """The next point; copies are made, over the oldest."""
        self._points.insert(0, self._points.pop())
        remember(self._points[0], beta, f)
        self._known = min(3, self._known + 1)

    def ahead(self, low: np.ndarray, high: np.ndarray, most: int) -> Ahead | None:
        """The best point within the bounds, if there is one that takes at most so many rows."""
        if self._known < 3:
            return None
        point, back = np.empty_like(self.newest), np.empty_like(low)
        n_back, left = look_ahead(self._points, low, high, _RIDGE, point, back)
        if not 0 <= n_back <= most:
            return None
        if left:
            beta = point[0]
            sharers = np.flatnonzero(self._points[0][0] != self._points[1][0])
            room = np.abs((low if left > 0 else high) - beta)[sharers].clip(max=abs(left))
            chosen = np.argsort(-room, kind="stable")[:_SHARERS]
            sharers, room = sharers[chosen], room[chosen]
            if not room.sum() > abs(left):
                return None
            share = -left * room / room.sum()
            beta[sharers] += share
            back[sharers] += share
        members = np.flatnonzero(back)
        return Ahead(point, members, back[members])
