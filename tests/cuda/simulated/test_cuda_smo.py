"""SVC's steps in Numba's simulator: the CPU's path to the bit, and the same solutions."""

import numpy as np
import pytest
from test_smo import Matrix, judged, problem

from gpurbf.backends import device_smo
from gpurbf.backends.loops_smo import solve_block
from gpurbf.kernels.cuda import smo
from gpurbf.network.solvers.smo import binary, pairs, side_by_side, solve_pairs


class OnDevice(Matrix):
    """A kernel whose values and steps are on the device, which is NumPy's here."""

    rounds, description = device_smo.Rounds, ""
    memory = 1e9

    def __init__(self, K, dtype=np.float64):
        super().__init__(K, ready=False)
        self.dtype = np.dtype(dtype)

    def room(self):
        return self.memory


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    for name in ("_THREADS", "_FEW", "_GATHERING"):
        monkeypatch.setattr(device_smo, name, 4)


def solve(kernel, starts, C, tol=1e-3, max_iter=-1, **hooks):
    bounds = np.broadcast_to(C, len(kernel.K)).astype(float)
    hooks = {"stepped": lambda *_: False, "solved": lambda *_: False} | hooks
    return solve_pairs(
        kernel, starts, bounds, tol=tol, max_iter=max_iter, cache_bytes=1e9, **hooks
    )


@pytest.mark.parametrize("C", [0.1, 10.0])
def test_a_pair_that_is_its_own_set_takes_the_path_of_the_CPU(C):
    K, starts = problem(sizes=(14, 9, 11))
    there = solve(OnDevice(K), starts, C)
    here = solve(Matrix(K, ready=True) , starts, C)
    for a, b in zip(there, here):
        assert (a.steps, a.violation) == (b.steps, b.violation)
        np.testing.assert_array_equal(a.beta, b.beta)
        assert a.converged
