"""The machine: memory with a limit and injected failures, and a record of what is done."""

import itertools
import threading
import time
import types
import weakref
from unittest.mock import patch

import numpy as np


class OutOfMemoryError(MemoryError):
    pass


class Gpu:
    """A record of copies as (direction, bytes) and cuBLAS calls, and of what should fail."""

    def __init__(self, capacity):
        self.capacity = capacity
        # What a test may change before the backend is loaded: of its properties.
        self.capability, self.device = (9, 0), 0
        self.copies, self.calls, self.pools, self.kernels = [], [], [], []
        # Of kernels and library calls; waits of the host; blocks that the driver was asked for.
        self.launches = self.synchronizations = self.mapped = self.asked = 0
        self.live, self.numbers = weakref.WeakValueDictionary(), itertools.count()
        self.n_allocations, self.fail_at, self.fail_above = 0, (), np.inf
        self.failure = OutOfMemoryError
        self.local, self.lock = threading.local(), threading.RLock()
        self.default_pool = MemoryPool(self)
        # The default stream: the package has no other, so all work is in its order.
        self.null = types.SimpleNamespace(ptr=0, synchronize=self.synchronize)

    def counts(self):
        """Launches, copies, synchronizations and allocations by the driver, so far."""
        return np.array([self.launches, len(self.copies), self.synchronizations, self.mapped])

    def bytes(self, direction):
        return sum(n for way, n in self.copies if way == direction)

    def properties(self, device):
        major, minor = self.capability
        return {"name": b"stand-in", "major": major, "minor": minor, "multiProcessorCount": 1}

    def using_allocator(self, allocator):
        return patch.object(self.local, "pool", allocator.__self__, create=True)

    def synchronize(self):
        self.synchronizations += 1

    def memory(self):
        self.asked += 1
        return self.free(), self.capacity

    def free(self):
        return self.capacity - sum(pool.total for pool in self.pools)


class Event:
    def record(self, stream=None):
        self.recorded = time.perf_counter()

    def synchronize(self):
        pass


class MemoryPool:
    def __init__(self, gpu):
        self.gpu = gpu
        self.used = self.total = self.peak = self.limit = 0
        gpu.pools.append(self)

    def malloc(self, size):
        raise NotImplementedError("the stand-in's arrays ask the pool themselves")

    def take(self, size):
        gpu = self.gpu
        with gpu.lock:
            gpu.n_allocations += 1
            total = max(self.total, self.used + size)
            if (
                gpu.n_allocations in gpu.fail_at
                or size > gpu.fail_above
                or (self.limit and total > self.limit)
                or total - self.total > gpu.free()
            ):
                raise gpu.failure(f"out of memory allocating {size} bytes")
            gpu.mapped += total > self.total
            self.used, self.total = self.used + size, total
            self.peak = max(self.peak, total)
            return size

    def give(self, size):
        with self.gpu.lock:
            self.used -= size

    def set_limit(self, size):
        assert 0 <= size < 2**64  # 0 is no limit
        self.limit = size

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return self.total

    def free_all_blocks(self):
        self.total = self.used


class Buffer:
    """A piece of device memory, which goes back to its pool."""

    def __init__(self, gpu, array):
        self.array, self.size = array, 0
        self.pool = getattr(gpu.local, "pool", gpu.default_pool)
        self.size = self.pool.take(-(-max(1, array.nbytes) // 512) * 512)
        gpu.live[next(gpu.numbers)] = self

    def __del__(self):
        self.pool.give(self.size)
