"""FSVC walk on a GPU"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf.runtime.arrays import to_host


class Rule(NamedTuple):
    """What makes a candidate a center, and where that is in doubt; see `Walk`."""

    overlap: float
    margin: float
    doubt: float


_WALK = """
enum { PASSED, CENTER, DOUBT };

__device__ int judged(
    const double* A, long long label, long long k, double overlap, double margin, double doubt
) {
    double activity = 0, rival = 0;
    for (long long j = 0; j < k; ++j) {
        activity += A[j];
        if (j != label && A[j] > rival) rival = A[j];
    }
    const double lead = A[label] - rival - __dmul_rn(margin, activity);
    if (fabs(activity - overlap) <= doubt || fabs(lead) <= doubt) return DOUBT;
    return activity < overlap && (lead < 0 || A[label] <= rival) ? CENTER : PASSED;
}

extern "C" __global__ void gpurbf_walk(
    double* A, const double* K, const long long* labels, long long N, long long k, double overlap,
    double margin, double doubt, long long begin, long long certain, long long room,
    long long* found
) {
    __shared__ long long earliest[2][WARPS];
    const int T = 32 * WARPS, t = threadIdx.x;
    long long q = t;  // the first of this thread's candidates that is not decided
    for (int turn = 0; begin < N && room > 0; turn ^= 1) {
        while (q < begin) q += T;
        long long next = 2 * N;
        for (long long p = q; p < N && next == 2 * N; p += T) {
            const double unsure = p == certain ? -1 : doubt;
            const int verdict = judged(A + p * k, labels[p], k, overlap, margin, unsure);
            if (verdict != PASSED) next = 2 * p + (verdict == DOUBT);
        }
        for (int step = 16; step; step /= 2) {
            const long long other = __shfl_xor_sync(0xffffffffu, next, step);
            next = other < next ? other : next;
        }
        if (t % 32 == 0) earliest[turn][t / 32] = next;
        __syncthreads();
        for (int w = 0; w < WARPS; ++w) next = earliest[turn][w] < next ? earliest[turn][w] : next;
        begin = next / 2;
        if (begin == N || next % 2) break;
        const double* row = K + begin * N;
        const long long label = labels[begin];
        if (t == 0) found[2 + begin] = 1;
        --room;
        ++begin;
        while (q < begin) q += T;
        for (long long p = q; p < N; p += T) A[p * k + label] += row[p];
    }
    if (t == 0) {
        found[0] = room ? begin : N;
        found[1] = room;
    }
}
"""
_WARPS = 16


def source() -> str:
    """The text of the kernel."""
    return f"#define WARPS {_WARPS}\n{_WALK}"


@functools.cache
def _kernel(xp: ModuleType, warps: int) -> Callable[..., None]:
    return xp.RawKernel(source(), "gpurbf_walk")


class Walk:
    """See :class:`gpurbf.fsvc.passes.Walk`; K (b, b) is on the device and C-contiguous."""

    def __init__(
        self, xp: ModuleType, A: np.ndarray, K: Any, labels: np.ndarray, rule: Rule, room: int
    ) -> None:
        self.xp, self.rule, self._K = xp, rule, K
        self._A, self._labels = xp.asarray(A), xp.asarray(labels)
        # The place where it stopped, the room that is left, and which candidates are taken.
        self._found = xp.zeros(len(A) + 2, np.int64)
        self._at, self._room, self._certain = 0, room, -1
        self.taken = np.zeros(len(A), bool)

    def go_on(self) -> int:
        """Decide candidates; the number of the one in doubt, b at the end. One wait."""
        numbers = map(np.int64, self._A.shape)
        state = map(np.int64, (self._at, self._certain, self._room))
        given = self._A, self._K, self._labels, *numbers, *map(np.float64, self.rule), *state
        _kernel(self.xp, _WARPS)((1,), (32 * _WARPS,), (*given, self._found))
        found = to_host(self._found)
        self._at, self._room = map(int, found[:2])
        self.taken = found[2:] != 0
        return self._at

    def settle(self, activities: np.ndarray) -> None:
        """The activity by class of the one in doubt, which is certain."""
        self._A[self._at] = self.xp.asarray(activities)
        self._certain = self._at
