"""Whether SVC's steps on a device are right: what they find is compared with the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from gpurbf.layer.backends import Backend, get_backend
from gpurbf.runtime.config import config_context
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module, once
from gpurbf.svm.binary import MAX_SINGLE_SET
from gpurbf.svm.cuda_pairs import solve_side_by_side
from gpurbf.svm.kernel_matrix import GivenKernel
from gpurbf.svm.pairs import PairsSolver

check = lazy_module("gpurbf.layer.backends.cuda.check")


def steps_on_device(backend: Backend) -> tuple[bool, str]:
    """Whether `cuda_pairs` can step on a backend's arrays; if they are on a device, why not."""
    if backend.xp is np:
        return False, ""
    try:
        get_backend("numba-cuda")
    except BackendUnavailable as error:
        return False, f"steps on the CPU: those on the GPU need numba-cuda ({error})"
    if why := _wrong_steps(backend):
        return False, f"steps on the CPU: those on the GPU are wrong ({why})"
    return True, ""


@once
def _wrong_steps(backend: Backend) -> str:
    """Check the steps on a device, once per process; returns the failure in words, or nothing."""
    with config_context(gpu_memory=None):  # not that of whoever asks first
        return next((case.why for case in step_cases(backend) if case.why), "")


def step_cases(backend: Backend, thorough: bool = False) -> Iterator[Any]:
    """Cases of `check.case`: bit for bit the CPU's path; of smaller sets the CPU's objective."""
    kernels, rng = "select, gather, inner, update", np.random.default_rng(0)

    def solver(kernel: Any, starts: np.ndarray) -> PairsSolver:
        names = [(a, b) for b in range(1, len(starts) - 1) for a in range(b)]
        return PairsSolver(
            kernel, starts, np.full(starts[-1], 5.0), names, tol=1e-3, max_iter=-1,
            cache_bytes=1e9, stepped=lambda *_: False, solved=lambda *_: False,
        )  # fmt: skip

    # The second has working sets, as only large pairs have them.
    small, large = (31, 20, 26), (1500, 1100)
    for lengths, size in ((small, None), (small, 16), *(((large, None),) if thorough else ())):
        X, starts = rng.normal(size=(sum(lengths), 5)), np.cumsum([0, *lengths])
        whole = size is None and max(a + b for a, b in pairwise(lengths)) <= MAX_SINGLE_SET

        def run(
            X: np.ndarray = X, starts: np.ndarray = starts, size: Any = size, whole: bool = whole
        ) -> Any:
            squared = np.square(X).sum(axis=1)
            K = np.exp((2 * X @ X.T - squared[:, None] - squared) / X.shape[1]).astype(np.float32)
            there = solver(_OnDevice(K, backend), starts)
            if not solve_side_by_side(there, size):
                raise MemoryError("kernel values")
            both = there.solutions, solver(GivenKernel(K, np.arange(len(K))), starts).solve()
            if whole:
                return (np.concatenate([pair.beta for pair in found]) for found in both)
            return ([pair.objective for pair in found] for found in both)

        data = f"pairs of classes of {', '.join(map(str, lengths))} samples"
        data += "" if size is None else f", sets of {size}"
        yield check.case(kernels, data, 0.0 if whole else 1e-3, run)


class _OnDevice(GivenKernel):
    """A kernel matrix as steps on a device ask for it."""

    on_device = True

    def __init__(self, K: np.ndarray, there: Backend) -> None:
        super().__init__(K, np.arange(len(K)))
        self.xp, self.allocator, self.free_bytes = there.xp, there.allocator, there.free_bytes

    def values(self, samples: np.ndarray, columns: slice, out: Any) -> None:
        """Write K[samples, columns] into ``out``."""
        out[...] = self.xp.asarray(self.matrix[samples, columns])
