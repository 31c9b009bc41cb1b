"""FSVC's sequential loops for `network`: the Numba kernels, imported when they are called."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpurbf.backends.threads import parallel_for, thread_limit

# Updates of one weight that take longer than it takes to wake a thread.
_WORTH_A_THREAD = 4_000_000


class Rule(NamedTuple):
    """What makes a candidate a center, and where that is in doubt; see `Walk`."""

    overlap: float
    margin: float
    doubt: float


class Walk:
    """The candidates of a block, decided in order; see :func:`gpurbf.kernels.novelty.walk`.

    Parameters
    ----------
    A : float64 array of shape (b, k)
        Activity by class of center, updated in place.
    K : float64 array of shape (b, b)
        Activation between candidates.
    labels : int64 array of shape (b,)
        Column of A that a candidate adds to.
    rule : Rule
    room : int
        How many centers there may be.

    Attributes
    ----------
    taken : bool array of shape (b,)
        The candidates chosen so far.
    """

    def __init__(
        self, A: np.ndarray, K: np.ndarray, labels: np.ndarray, rule: Rule, room: int
    ) -> None:
        self.A, self.K, self.labels, self.rule = A, K, labels, rule
        self._at, self._room = 0, room
        self.taken, self._certain = np.zeros((2, len(A)), bool)

    def go_on(self) -> int:
        """Decide candidates; the number of the one in doubt, b at the end."""
        from gpurbf.kernels import novelty

        given = self.A, self.K, self.labels, self._certain, *self.rule
        self._at, self._room = novelty.walk(self._at, *given, self._room, self.taken)
        return self._at

    def settle(self, activities: np.ndarray) -> None:
        """The activity by class of the one in doubt, which is certain."""
        self.A[self._at], self._certain[self._at] = activities, True


def aligned(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """See :func:`gpurbf.kernels.packing.aligned`."""
    from gpurbf.kernels import packing

    return packing.aligned(shape, dtype)


def lms_rows(
    H: np.ndarray, T: np.ndarray, W: np.ndarray, learning_rate: float, weights: np.ndarray | None
) -> None:
    """Pass the rows of H (b, m) once through the delta rule; W (k, m) is updated in place.

    The outputs do not depend on each other: each thread takes some of them, and the result is the
    same for any number of threads.
    """
    from gpurbf.kernels import lms

    k = T.shape[1]
    repeats = np.empty(0) if weights is None else weights
    n_parts = min(k, thread_limit()) if T.size * H.shape[1] > _WORTH_A_THREAD else 1

    def outputs(i: int) -> None:
        mine = slice(i * k // n_parts, (i + 1) * k // n_parts)
        lms.rows(H, np.ascontiguousarray(T[:, mine]), W[mine], learning_rate, repeats)

    parallel_for(outputs, n_parts)


def pass_over(*arguments: Any) -> None:
    """The sequential pass over known distances; see :func:`gpurbf.kernels.novelty.pass_over`."""
    from gpurbf.kernels import novelty

    novelty.pass_over(*arguments)
