"""Threads of Numba's simulator meet at a real barrier.

Its own way, asking each of them in turn without a pause, keeps them from running and takes most of
the time.
"""

import threading

import pytest

# Seconds that a thread may keep the others of its block waiting.
PATIENCE = 60


@pytest.fixture(autouse=True)
def fast_simulator(monkeypatch):
    """The same simulator with a real barrier; a barrier that a thread misses is an error."""
    kernel = pytest.importorskip("numba.cuda.simulator.kernel")

    from gpurbf.backends import numba_cuda
    from gpurbf.kernels.cuda import pack

    def run(self, grid_point, *args):
        points = [(x, y, z) for z in range(self._block_dim[2]) for y in range(self._block_dim[1])
                  for x in range(self._block_dim[0])]  # fmt: skip
        self.barrier = threading.Barrier(len(points), timeout=PATIENCE)
        threads = [
            kernel.BlockThread(lambda: self._f(*args), self, grid_point, point, self._debug)
            for point in points
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for thread in threads:
            if thread.exception:
                raise thread.exception[0].with_traceback(thread.exception[1])

    def syncthreads(self):
        self._manager.barrier.wait()

    # Blocks of few threads, rows padded to the smallest tile.
    monkeypatch.setattr(pack, "LANES", 4)
    monkeypatch.setattr(pack, "ROWS", 8)
    monkeypatch.setattr(numba_cuda, "_PADDED", 64)
    monkeypatch.setattr(kernel.BlockManager, "run", run)
    monkeypatch.setattr(kernel.BlockThread, "syncthreads", syncthreads)
