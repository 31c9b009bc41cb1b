"""Threads of Numba's simulator take turns.

Its own way, asking all of them without a pause whether they have reached the barrier, keeps them
from running and takes most of the time. Here one thread runs at a time, up to the next barrier,
always in the same order: what reads before another thread has written is wrong every time.
"""

import threading
from contextlib import ExitStack
from types import FunctionType

import numpy as np
import pytest
import standin

from gpurbf.layer.backends.cuda import numba_cuda
from gpurbf.runtime.jit import cuda_api
from gpurbf.svm import _cuda_smo_kernels, _smo_kernels, cuda_pairs
from tests.layer.cuda import kernels_in_numpy


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    """The same simulator with another scheduler, blocks of few threads and little padding."""
    assert cuda_api.SIMULATED
    kernel = pytest.importorskip("numba.cuda.simulator.kernel")
    kernelapi = pytest.importorskip("numba.cuda.simulator.kernelapi")
    from gpurbf.layer.backends.cuda.kernels import profiles, tile

    # The simulator cannot run what is written in PTX.
    monkeypatch.setattr(tile, "registers", kernels_in_numpy)
    monkeypatch.setattr(tile, "outputs", kernels_in_numpy)
    monkeypatch.setattr(profiles, "exponential", kernels_in_numpy.exponential)
    monkeypatch.setattr(profiles, "root", kernels_in_numpy.root)
    tile.kernel.cache_clear()

    def argument(array):
        """The memory of an array: what a launch gets of CuPy's, here the stand-in's."""
        return array._a if isinstance(array, standin.ndarray) else array

    monkeypatch.setattr(cuda_api, "argument", argument)
    monkeypatch.setattr(cuda_api, "current_stream", lambda: 0)
    # Numbers of threads that no number of samples here is a multiple of.
    monkeypatch.setattr(cuda_pairs, "_STEP_THREADS", 3)
    monkeypatch.setattr(cuda_pairs, "_UPDATE_THREADS", 4)
    monkeypatch.setattr(cuda_pairs, "_MAX_BLOCKS_PER_PAIR", 2)
    for name in ("_key", "_gain"):  # the CPU's functions, for which NumPy reads the bits here
        code = getattr(_smo_kernels, name).py_func.__code__
        names = vars(_smo_kernels) | {"bits_as": lambda x, kind: np.float64(x).view(kind)}
        monkeypatch.setattr(_cuda_smo_kernels, name, FunctionType(code, names))

    def run(self, grid_point, *args):
        points = [point[::-1] for point in np.ndindex(*self._block_dim[::-1])]
        self.turns = [threading.Lock() for _ in points]
        self.barriers, self.alive = [0] * len(points), [True] * len(points)

        def target(i):
            self.turns[i].acquire()
            try:
                self._f(*args)
            finally:
                self.alive[i] = False
                self.next(i)

        threads = []
        for i, point in enumerate(points):
            self.turns[i].acquire()
            thread = kernel.BlockThread(lambda i=i: target(i), self, grid_point, point, self._debug)
            thread.number = i
            threads.append(thread)
            thread.start()
        self.turns[0].release()
        for thread in threads:
            thread.join()
        for thread in threads:
            if thread.exception:
                raise thread.exception[0].with_traceback(thread.exception[1])
        assert len(set(self.barriers)) == 1, "a barrier that some threads of a block do not reach"

    def hand_over(self, i):
        """Let the next thread that has not finished run."""
        for j in (*range(i + 1, len(self.turns)), *range(i + 1)):
            if self.alive[j]:
                self.turns[j].release()
                return

    def syncthreads(self):
        manager, i = self._manager, self.number
        manager.barriers[i] += 1
        manager.next(i)
        manager.turns[i].acquire()

    call, launch = kernel.FakeCUDAKernel.__call__, ExitStack()

    def called(self, *args):
        """A launch, or a function on the device, whose module sees that of the simulator."""
        context = kernel._get_kernel_context()
        if context is None:
            with launch:
                return call(self, *args)
        if not kernelapi._swap_refcount[id(self.fn.__globals__)]:
            launch.enter_context(kernelapi.swapped_cuda_module(self.fn, context))
        return self.fn(*args)

    monkeypatch.setattr(kernel.FakeCUDAKernel, "__call__", called)
    monkeypatch.setattr(kernel.BlockManager, "run", run)
    monkeypatch.setattr(kernel.BlockManager, "next", hand_over, raising=False)
    monkeypatch.setattr(kernel.BlockThread, "syncthreads", syncthreads)
    monkeypatch.setattr(numba_cuda, "_PADDED", 64)
