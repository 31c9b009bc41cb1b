"""K between the members of a working set, where inner steps are made."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpurbf.backends.loops_smo import mirror_rows, pick
from gpurbf.network.solvers.smo.kernel import Kernel

__all__ = ["WorkingBlock"]


class WorkingBlock:
    """K between the members of a working set, float32; evaluated, which is faster than gathering.

    It changes in place: members that stay from one set to the next are not evaluated again.
    """

    def __init__(self, kernel: Kernel, samples: np.ndarray) -> None:
        self.kernel, self.samples = kernel, samples
        self._K = np.empty((0, 0), np.float32)
        self._columns: Any = None

    def of(self, members: np.ndarray, fresh: slice, wide: bool = False) -> np.ndarray:
        """K[members][:, members], valid until the next call, of whose members all but some stay.

        In float64 if it is to be wide, and so are the next ones then.
        """
        n, samples = len(members), pick(self.samples, members)
        if wide:
            return self.kernel.between(samples)
        if len(self._K) != n:
            self._K, fresh = np.empty((n, n), np.float32), slice(0, n)
        self._columns = self.kernel.over(samples, self._columns, fresh)
        self.kernel.values(samples[fresh], self._columns, self._K[fresh])
        mirror_rows(self._K, fresh)
        return self._K
