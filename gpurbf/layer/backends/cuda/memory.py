"""Properties of a GPU, and its memory within a budget."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

from gpurbf.runtime.config import get_config
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.stages import FENCES

# Share of the free memory that is the budget if none is given.
_SHARE = 0.8


class Device(NamedTuple):
    """Properties by which backends choose products and shapes of tiles."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int

    @property
    def fast_doubles(self) -> bool:
        """Whether matrix products in float64 run at float32's rate: A100 and H100 do."""
        return self.capability in ((8, 0), (9, 0))

    @property
    def tensor_floats(self) -> bool:
        """Whether three TF32 products take less time than one in float32 (data center GPUs)."""
        return self.capability in ((8, 0), (9, 0), (10, 0), (10, 3))


class Needs(NamedTuple):
    """Bytes per row besides itself and its result, and ``scratch`` of the first ``chunk`` rows."""

    row: float
    scratch: float = 0
    chunk: float = 0

    def rows(self, free: float, more: float) -> float:
        """How many rows fit in ``free`` bytes if each takes ``more`` bytes in addition."""
        few = free / max(1.0, self.row + self.scratch + more)
        if few <= self.chunk or not self.scratch:
            return few
        return (free - self.chunk * self.scratch) / max(1.0, self.row + more)


class Memory:
    """The device memory that this process takes."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self.pool = xp.cuda.MemoryPool()
        self._process, self._device = os.getpid(), xp.cuda.runtime.getDevice()
        self._local = threading.local()

    def budget(self) -> int:
        """Bytes of the device that the pool may take; determined once per call."""
        if getattr(self._local, "budget", None) is not None:
            return self._local.budget
        megabytes = get_config()["gpu_memory"] or _environment_megabytes()
        if megabytes:
            return int(megabytes * 2**20)
        free, _ = self.xp.cuda.runtime.memGetInfo()
        return int(_SHARE * (free + self.pool.total_bytes()) / processes())

    @contextmanager
    def allocator(self) -> Iterator[None]:
        """Make arrays in the pool within the block.

        Memory that is free at the end stays in the pool, because the driver takes milliseconds to
        map memory. It is given back when a smaller budget begins.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "This process was forked after its parent had used the GPU, and CUDA does not work "
                "in such a process. Start workers with joblib's loky or "
                "multiprocessing.get_context('spawn'), or fork before the first use of the GPU."
            )
        if (device := self.xp.cuda.runtime.getDevice()) != self._device:
            raise BackendUnavailable(
                f"device {device} is the current one, but this process computes on device "
                f"{self._device}, which it met first: use cupy.cuda.Device({self._device}), or a "
                f"process for each device, started with CUDA_VISIBLE_DEVICES={device}."
            )
        if getattr(self._local, "budget", None) is not None:  # within another one
            yield
            return
        budget = self.budget()
        if self.pool.total_bytes() > budget:
            self.pool.free_all_blocks()
        self.pool.set_limit(size=budget)
        self._local.budget = budget
        try:
            with self.xp.cuda.using_allocator(self.pool.malloc):
                yield
        finally:
            self._local.budget = None

    def free_bytes(self) -> float:
        """Bytes of the budget that are left, less 10 %: rounded blocks never fill a pool quite."""
        return 0.9 * (self.budget() - self.pool.used_bytes())


def processes() -> int:
    """The number of processes that share the device: joblib's workers, by their share of the cores.

    A worker can infer the number of workers only from the number of threads that joblib gives it.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if not (multiprocessing.current_process().name.startswith("Loky") and threads.isdigit()):
        return 1
    from joblib import cpu_count

    return max(1, cpu_count() // max(1, int(threads)))


def _environment_megabytes() -> float:
    """GPURBF_GPU_MEMORY, 0 if it is not set."""
    text = os.environ.get("GPURBF_GPU_MEMORY", "")
    try:
        megabytes = float(text or 0)
    except ValueError:
        megabytes = -1.0
    if megabytes < 0:
        raise ValueError(f"GPURBF_GPU_MEMORY must be a number of megabytes > 0, got {text!r}.")
    return megabytes


@functools.cache
def memory_of(xp: ModuleType) -> Memory:
    """The one `Memory` of a process for all backends of that library."""
    FENCES.append(lambda: xp.cuda.Device().synchronize())
    return Memory(xp)
