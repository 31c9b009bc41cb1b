"""A backend on a GPU: memory within a budget, tiles on several streams, copies beside the work.

A device backend brings functions that take and give arrays of the device and run on the current
stream; `on_device` makes them a `Backend` for arrays on either side of the bus.

    lane 0   copy in 0 │ compute 0 │ copy out 0 │ copy in 2 │ compute 2 │ …
    lane 1             │ copy in 1 │ compute 1  │ copy out 1 │ …

A lane is a stream with pinned buffers for its tile. Sums over tiles (`normal`) are added in the
order of the tiles, each after an event of the one before, so that the number of lanes changes no
bit. Where memory runs out, what is under way is finished, the tile is halved, and the work goes on
with the first row that is not done.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf._config import get_config
from gpurbf._stages import FENCES, count, stage
from gpurbf.backends import Backend
from gpurbf.backends.arrays import is_resident

__all__ = ["memory_of", "on_device"]

# Of the free memory, if no budget is given.
_SHARE = 0.8
# Free blocks up to so many bytes stay in the pool: small calls in succession do not wait for the
# driver to map memory.
_KEPT = 1 << 26
# Tiles that a large input is cut into, so that copies have work to hide behind, and their least
# rows.
_PIECES, _LEAST = 8, 2048
# Rows whose products are summed in the operand's dtype before they are added in float64.
_SUMMED = 4096


class Memory:
    """The device memory that this process takes, and the streams of each of its threads."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self.pool = xp.cuda.MemoryPool()
        # The largest size that the pool had at the end of a call, before what is free went back.
        self.peak = 0
        self._process = os.getpid()
        self._local = threading.local()

    def budget(self) -> int:
        """Bytes that the pool may take of the device."""
        megabytes = get_config()["gpu_memory"] or _environment_megabytes()
        if megabytes:
            return int(megabytes * 2**20)
        free, _ = self.xp.cuda.runtime.memGetInfo()
        return int(_SHARE * (free + self.pool.total_bytes()))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Arrays are made in the pool within the block; at its end large free blocks go back."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "This process was forked after its parent had used the GPU, and CUDA does not work "
                "in such a process. Start workers with joblib's loky or "
                "multiprocessing.get_context('spawn'), or fork before the first use of the GPU."
            )
        if getattr(self._local, "inside", False):
            yield
            return
        self.pool.set_limit(size=self.budget())
        self._local.inside = True
        try:
            with self.xp.cuda.using_allocator(self.pool.malloc):
                yield
        finally:
            self._local.inside = False
            self.peak = max(self.peak, self.pool.total_bytes())
            if self.pool.free_bytes() > _KEPT:
                self.pool.free_all_blocks()

    def streams(self, count: int) -> list[Any]:
        """Streams of this thread on the current device; each call reuses their memory."""
        key = f"streams{self.xp.cuda.Device().id}"
        streams = self._local.__dict__.setdefault(key, [])
        while len(streams) < count:
            streams.append(self.xp.cuda.Stream(non_blocking=True))
        return streams[:count]

    def room(self) -> float:
        """Bytes of the budget that are left; blocks are rounded up and a pool never fills quite."""
        return 0.9 * (self.budget() - self.pool.used_bytes())

    def tile_rows(self, N: int, row_bytes: float, fixed: float, lanes: int, most: float) -> int:
        """Rows of a tile: what fits, but several tiles of a large input."""
        fits = (self.room() - fixed) / (max(1.0, row_bytes) * lanes)
        return int(max(1, min(N, fits, most, max(_LEAST, math.ceil(N / _PIECES)))))


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
    """One account a process for all backends of that library."""
    FENCES.append(lambda: xp.cuda.Device().synchronize())
    return Memory(xp)


class _Lane:
    """A stream, pinned memory for what goes in and out, and the tile that is under way."""

    def __init__(self, xp: ModuleType, stream: Any) -> None:
        self.xp, self.stream = xp, stream
        self.event = xp.cuda.Event(disable_timing=True)
        self._pinned: dict[Any, Any] = {}
        self._pending: tuple[Any, Any, Any] | None = None

    def launch(
        self,
        part: slice,
        sources: tuple[Any, ...],
        compute: Callable[..., Any],
        out: Any,
        after: Any,
    ) -> None:
        """Copy rows of the sources in, compute, start to copy the result into rows of ``out``.

        The computation, not the copy before it, waits for the event ``after``.
        """
        with self.stream:
            operands = [
                None if source is None else self._rows(i, source, part)
                for i, source in enumerate(sources)
            ]
            if after is not None:
                self.stream.wait_event(after)
            result = compute(part, *operands)
            if result is not None and out is not None:
                if is_resident(out):
                    out[part] = result
                else:
                    target = self._buffer("out", result.shape, result.dtype)
                    result.get(stream=self.stream, out=target, blocking=False)
                    # The device's array lives until its copy is done.
                    self._pending = out[part], target, result
            self.event.record(self.stream)

    def finish(self) -> None:
        """Wait for the tile that is under way and hand its result over."""
        self.event.synchronize()
        if self._pending is not None:
            with stage("back and evaluate", "to host"):
                rows, target, _ = self._pending
                rows[...] = target
                count(nbytes=target.nbytes)
            self._pending = None

    def _rows(self, i: int, source: Any, part: slice) -> Any:
        rows = source[part]
        if is_resident(rows):
            return self.xp.ascontiguousarray(rows)
        with stage("host to device", "rows"):
            staged = self._buffer(i, rows.shape, rows.dtype)
            staged[...] = rows
            copy = self.xp.empty(rows.shape, rows.dtype)
            copy.set(staged, stream=self.stream)
            count(nbytes=copy.nbytes)
        return copy

    def _buffer(self, key: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Pinned memory, kept for the next tile, which is no larger."""
        dtype = np.dtype(dtype)
        count = math.prod(shape)
        if key not in self._pinned or self._pinned[key].nbytes < count * dtype.itemsize:
            block = self.xp.cuda.alloc_pinned_memory(max(1, count * dtype.itemsize))
            self._pinned[key] = np.frombuffer(block, np.uint8, max(1, count * dtype.itemsize))
        return self._pinned[key][: count * dtype.itemsize].view(dtype).reshape(shape)


def _run(
    memory: Memory,
    begin: int,
    N: int,
    rows: int,
    sources: tuple[Any, ...],
    compute: Callable[..., Any],
    out: Any,
) -> int:
    """Tiles from row ``begin`` on; the first row that is not done, N unless memory ran out."""
    xp = memory.xp
    caller = xp.cuda.get_current_stream()
    ready = xp.cuda.Event(disable_timing=True)
    ready.record(caller)
    lanes = [_Lane(xp, stream) for stream in memory.streams(get_config()["n_streams"])]
    for lane in lanes:
        lane.stream.wait_event(ready)
    previous = None
    try:
        for i, start in enumerate(range(begin, N, rows)):
            lane = lanes[i % len(lanes)]
            lane.finish()
            part = slice(start, min(start + rows, N))
            # Without a result of its own a tile adds to sums that the one before has changed.
            lane.launch(part, sources, compute, out, previous if out is None else None)
            previous, begin = lane.event, part.stop
    except xp.cuda.memory.OutOfMemoryError:
        pass
    finally:
        # Whatever happened, nothing may write to these buffers once they are gone.
        for lane in lanes:
            lane.stream.synchronize()
    for i in range(len(lanes)):
        lanes[i].finish()
    return begin


def _tiled(
    memory: Memory,
    N: int,
    row_bytes: float,
    sources: tuple[Any, ...],
    compute: Callable[..., Any],
    out: Any,
    fixed: float = 0,
    most: float = math.inf,
) -> None:
    """Compute N rows in tiles that fit, smaller ones each time that memory runs out."""
    rows = memory.tile_rows(N, row_bytes, fixed, get_config()["n_streams"], most)
    done = 0
    while (done := _run(memory, done, N, rows, sources, compute, out)) < N:
        memory.pool.free_all_blocks()
        if rows == 1:
            raise _exhausted(memory, "one row of the hidden layer")
        rows //= 2


def _exhausted(memory: Memory, what: str) -> MemoryError:
    megabytes, taken = (x / 2**20 for x in (memory.budget(), memory.pool.used_bytes()))
    return MemoryError(
        f"The GPU's memory does not hold {what}: the budget is {megabytes:.0f} MB, {taken:.0f} MB "
        "are taken. Raise GPURBF_GPU_MEMORY or config_context(gpu_memory=...), free memory of "
        "other programs, use fewer centers, or a backend on the CPU such as backend='numba'."
    )


def on_device(raw: Backend, row_bytes: Callable[[Any], float]) -> Backend:
    """The `Backend` for arrays on either side of the bus, of one for arrays of the device only.

    Parameters
    ----------
    raw : Backend
        All arrays that its functions take are CuPy's (``C``, ``X``, ``out``, ``W``, ``T``, ``w``,
        ``mean``, ``G``, ``B``), ``X`` is C-contiguous, a tile is given at a time, and the work goes
        to the current stream. ``scores`` returns a new array. ``normal`` makes all that it makes
        before it changes G and B, so that it can be repeated where memory runs out.
    row_bytes : callable
        ``row_bytes(operand)``: memory that a row of X takes in any of these functions beside X,
        the row of H included.
    """
    xp = raw.xp
    # Made now, because looking for a GPU is what a process must not do before it forks.
    memory = memory_of(xp)

    def ready(call: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its arrays in the pool, on a device that this process may use."""

        @functools.wraps(call)
        def inside(*arguments: Any, **options: Any) -> Any:
            with memory.working():
                return call(*arguments, **options)

        return inside

    @ready
    def prepare_here(C: Any, *rest: Any, **options: Any) -> Any:
        try:
            operand = raw.prepare(xp.ascontiguousarray(xp.asarray(C)), *rest, **options)
        except xp.cuda.memory.OutOfMemoryError:
            operand = None
        if operand is None:
            raise _exhausted(memory, f"{len(C)} centers of {C.shape[1]} inputs")
        # Other streams will read it.
        xp.cuda.get_current_stream().synchronize()
        return operand

    @ready
    def outputs_here(operand: Any, X: Any, out: Any) -> Any:
        def compute(part: slice, X: Any) -> Any:
            if is_resident(out):
                raw.outputs(operand, X, out[part])
                return None
            return raw.outputs(operand, X, xp.empty((len(X), out.shape[1]), out.dtype))

        _tiled(memory, len(X), row_bytes(operand) + _row_size(X), (X,), compute, out)
        return out

    @ready
    def scores_here(operand: Any, X: Any, W: Any) -> Any:
        W = xp.asarray(W, operand.dtype)
        S = (xp if is_resident(X) else np).empty((len(X), W.shape[1]), operand.dtype)
        size = row_bytes(operand) + _row_size(X) + _row_size(S)

        def compute(part: slice, X: Any) -> Any:
            return raw.scores(operand, X, W)

        _tiled(memory, len(X), size, (X,), compute, S)
        return S

    @ready
    def normal_here(
        operand: Any, X: Any, T: Any, w: Any, mean: Any, G: Any, B: Any, grid: None = None
    ) -> None:
        mean = xp.asarray(mean)
        size = row_bytes(operand) + _row_size(X) + 2 * _row_size(T)

        def compute(part: slice, X: Any, T: Any, w: Any) -> None:
            raw.normal(operand, X, T, w, mean, G, B)

        # The square of a tile, and the sum of it and its mirror.
        fixed = 0 if G is None else 2 * operand.dtype.itemsize * len(G) ** 2
        _tiled(memory, len(X), size, (X, T, w), compute, None, fixed, _SUMMED)

    return replace(
        raw,
        prepare=prepare_here,
        outputs=outputs_here,
        scores=scores_here,
        normal=normal_here,
        weights=lambda operand, W: W,
        working=memory.working,
        room=memory.room,
    )


def _row_size(A: Any) -> int:
    """Bytes of a row."""
    return int(math.prod(A.shape[1:]) * A.dtype.itemsize)
