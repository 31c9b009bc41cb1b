"""K between the members of a working set, where inner steps are made."""

from __future__ import annotations

import numpy as np

from gpurbf.backends.loops_smo import assemble_block
from gpurbf.network.solvers.smo.kernel import Kernel

__all__ = ["WorkingBlock"]


class WorkingBlock:
    """K between the members of a working set, float32; evaluated, which is faster than gathering.

    Members that were the end of the last set come first and are not evaluated again.
    """

    def __init__(self, kernel: Kernel, samples: np.ndarray, scratch: np.ndarray) -> None:
        self.kernel, self.samples, self._scratch = kernel, samples, scratch
        self._members = np.zeros(0, np.intp)
        self._block = np.zeros((0, 0), np.float32)
        self._spare = self._block

    def of(self, members: np.ndarray) -> np.ndarray:
        """K[members][:, members], valid until the call after the next."""
        n, kept = len(members), self._kept(members)
        K = self._spare if self._spare.shape == (n, n) else np.empty((n, n), np.float32)
        old = len(self._members) - kept
        fresh = self._evaluate(self.samples[members], kept)
        assemble_block(K, self._block[old:, old:], fresh)
        self._members, self._block, self._spare = members, K, self._block
        return K

    def _kept(self, members: np.ndarray) -> int:
        """How many of the first members are the last half of the last set, all or none."""
        old = self._members[len(self._members) // 2 :]
        return len(old) if np.array_equal(members[: len(old)], old) else 0

    def _evaluate(self, samples: np.ndarray, kept: int) -> np.ndarray:
        """K[samples][:, samples[kept:]], in memory that is written again by the next call."""
        shape = len(samples), len(samples) - kept
        size = shape[0] * shape[1]
        flat = self._scratch if size <= len(self._scratch) else np.empty(size, np.float32)
        fresh = flat[:size].reshape(shape)
        self.kernel.values(samples, samples[kept:], fresh)
        return fresh
