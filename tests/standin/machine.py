"""The machine: memory with a limit and injected failures, and the order of work on streams."""

import contextlib
import ctypes
import itertools
import threading
import time
import weakref

import numpy as np


class OutOfMemoryError(MemoryError):
    pass


class RaceError(AssertionError):
    pass


def merge(clock, other):
    for key, tick in other.items():
        clock[key] = max(clock.get(key, 0), tick)


class Gpu:
    """A record of copies as (direction, bytes), cuBLAS calls and hazards, and of what should fail.

    Time is a vector clock a stream: which operation of each stream is known to be done before.
    """

    def __init__(self, capacity):
        self.capacity = capacity
        # What a test may change before the backend is loaded: of its properties.
        self.capability, self.l2, self.device = (9, 0), 1 << 20, 0
        self.copies, self.hazards, self.calls, self.pools = [], [], [], []
        self.kernels = []
        # Of kernels and library calls; waits of the host; blocks that the driver was asked for.
        self.launches = self.synchronizations = self.mapped = self.asked = 0
        self.live = weakref.WeakValueDictionary()
        self.n_allocations, self.fail_at, self.fail_above = 0, (), np.inf
        self.known_to_host = {}
        self.pinned, self.streams = [], []
        self.numbers = itertools.count()
        self.local, self.lock = threading.local(), threading.RLock()
        self.null = Stream(self)
        self.default_pool = MemoryPool(self)

    def counts(self):
        """Launches, copies, synchronizations and allocations by the driver, so far."""
        return np.array([self.launches, len(self.copies), self.synchronizations, self.mapped])

    def bytes(self, direction):
        return sum(n for way, n in self.copies if way == direction)

    def current(self):
        return getattr(self.local, "stream", self.null)

    @contextlib.contextmanager
    def using_allocator(self, allocator):
        before = getattr(self.local, "pool", self.default_pool)
        self.local.pool = allocator.__self__
        try:
            yield
        finally:
            self.local.pool = before

    def alloc_pinned_memory(self, size):
        block = bytearray(size)
        start = ctypes.addressof(ctypes.c_char.from_buffer(block))
        self.pinned.append((start, start + size))
        return block

    def is_pinned(self, array):
        start = array.ctypes.data
        return any(low <= start and start + array.nbytes <= high for low, high in self.pinned)

    def synchronize(self):
        for stream in self.streams:
            stream.synchronize()

    def memory(self):
        self.asked += 1
        return self.free(), self.capacity

    def free(self):
        return self.capacity - sum(pool.total for pool in self.pools)


class Stream:
    def __init__(self, gpu, non_blocking=False):
        self.gpu, self.id = gpu, next(gpu.numbers)
        self.clock, self.queue, self.outer = {}, [], []
        gpu.streams.append(self)

    def tick(self):
        """The time of one more operation."""
        merge(self.clock, self.gpu.known_to_host)
        self.clock[self.id] = self.clock.get(self.id, 0) + 1
        return self

    def __enter__(self):
        self.outer.append(self.gpu.current())
        self.gpu.local.stream = self
        return self

    def __exit__(self, *exception):
        self.gpu.local.stream = self.outer.pop()

    def wait_event(self, event):
        merge(self.clock, event.clock)

    def later(self, job):
        """Do it when the host is next told that the stream has come so far."""
        self.queue.append((self.clock[self.id], job))

    def deliver(self, tick):
        due = [job for at, job in self.queue if at <= tick]
        self.queue = [(at, job) for at, job in self.queue if at > tick]
        for job in due:
            job()

    def synchronize(self):
        self.gpu.synchronizations += 1
        merge(self.gpu.known_to_host, self.clock)
        self.deliver(np.inf)


class Event:
    def __init__(self, gpu, disable_timing=False):
        self.gpu, self.clock, self.stream = gpu, {}, None

    def record(self, stream=None):
        self.stream = stream or self.gpu.current()
        self.clock, self.recorded = dict(self.stream.clock), time.perf_counter()

    def synchronize(self):
        self.gpu.synchronizations += 1
        merge(self.gpu.known_to_host, self.clock)
        if self.stream is not None:
            self.stream.deliver(self.clock.get(self.stream.id, 0))


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
                raise OutOfMemoryError(f"out of memory allocating {size} bytes")
            gpu.mapped += total > self.total
            self.used, self.total = self.used + size, total
            self.peak = max(self.peak, total)
            return size

    def give(self, size):
        with self.gpu.lock:
            self.used -= size

    def set_limit(self, size):
        self.limit = size

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return self.total

    def free_bytes(self):
        return self.total - self.used

    def free_all_blocks(self):
        self.total = self.used


class Buffer:
    """A piece of device memory: the pool it is from, and which bytes who wrote and read."""

    def __init__(self, gpu, array):
        self.gpu, self.array, self.stream = gpu, array, gpu.current()
        # (first byte, last byte, stream, time), of the newest write and of reads since.
        self.writes, self.reads = [], []
        self.pool, self.size = getattr(gpu.local, "pool", gpu.default_pool), 0
        self.size = self.pool.take(-(-max(1, array.nbytes) // 512) * 512)
        gpu.live[id(self)] = self

    def read(self, stream, low, high):
        self._after(self.writes, stream, low, high)
        self.reads.append((low, high, stream.id, stream.clock[stream.id]))

    def write(self, stream, low, high):
        self._after(self.writes + self.reads, stream, low, high)
        for uses in (self.writes, self.reads):
            uses[:] = [use for use in uses if use[0] < low or use[1] > high]
        self.writes.append((low, high, stream.id, stream.clock[stream.id]))

    def _after(self, uses, stream, low, high):
        for first, last, who, tick in uses:
            if first < high and low < last and stream.clock.get(who, 0) < tick:
                raise RaceError(f"stream {stream.id} may come before {who} to the same bytes")

    def __del__(self):
        # A freed block is given to the next array of the stream that it was made on.
        known = dict(self.stream.clock)
        merge(known, self.gpu.known_to_host)
        for *_, who, tick in self.writes + self.reads:
            if known.get(who, 0) < tick:
                self.gpu.hazards.append(f"stream {who} may still use freed memory")
        self.pool.give(self.size)
