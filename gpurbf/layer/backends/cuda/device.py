"""A backend on a GPU: memory within a budget, tiles on several streams, copies beside the work.

A device backend brings functions that take and give arrays of the device and run on the current
stream; `on_device` makes them a `Backend` for arrays on either side of the bus. Where samples and
results are on the device, that is all there is: one tile if it fits, on the caller's stream, and
nobody waits. From and to the host,

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
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gpurbf.layer.backends import Backend
from gpurbf.layer.backends.cuda.memory import DeviceWeights, Memory, Needs, memory_of
from gpurbf.runtime.arrays import is_resident
from gpurbf.runtime.config import get_config
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, thread_limit

# Tiles that a large input is cut into, so that copies have work to hide behind, and their least
# rows.
_PIECES, _LEAST = 8, 2048
# Rows whose products are summed in the operand's dtype before they are added in float64.
_SUMMED = 4096
# Bytes that take longer to copy than a thread to wake.
_WORTH_A_THREAD = 1 << 21


def _copy(to: np.ndarray, rows: np.ndarray) -> None:
    """``to[...] = rows`` by several threads: one does not copy as fast as a bus takes it."""
    n = max(1, min(thread_limit(), len(to), to.nbytes // _WORTH_A_THREAD))

    def some(i: int) -> None:
        part = slice(i * len(to) // n, (i + 1) * len(to) // n)
        to[part] = rows[part]

    parallel_for(some, n)


class _Lane:
    """A stream, pinned memory for what goes in and out, and the tile that is under way."""

    def __init__(self, xp: Any, stream: Any) -> None:
        self.xp, self.stream = xp, stream
        self.event = xp.cuda.Event(disable_timing=True)
        self._pinned: dict[Any, Any] = {}
        self._pending: tuple[Any, Any, Any] | None = None
        self._busy = False

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
        self._busy = True
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
        if self._busy:
            self.event.synchronize()
        self._busy = False
        self._hand_over()

    def end(self) -> None:
        """Wait for all that was begun, done or not."""
        if self._busy:
            self.stream.synchronize()
        self._busy = False

    def _hand_over(self) -> None:
        if self._pending is not None:
            with stage("back and evaluate", "to host"):
                rows, target, _ = self._pending
                _copy(rows, target)
                count(nbytes=target.nbytes)
            self._pending = None

    def _rows(self, i: int, source: Any, part: slice) -> Any:
        rows = source[part]
        if is_resident(rows):
            return self.xp.ascontiguousarray(rows)
        with stage("host to device", "rows"):
            staged = self._buffer(i, rows.shape, rows.dtype)
            _copy(staged, rows)
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
            lane.end()
    for lane in lanes:
        lane.finish()
    return begin


def _here(
    memory: Memory, begin: int, N: int, rows: int, sources: tuple[Any, ...], compute: Callable
) -> int:
    """The same of arrays on the device, in tiles on the caller's stream; nobody waits."""
    try:
        for start in range(begin, N, rows):
            part = slice(start, min(start + rows, N))
            given = (source if source is None else source[part] for source in sources)
            compute(part, *(A if A is None else memory.xp.ascontiguousarray(A) for A in given))
            begin = part.stop
    except memory.xp.cuda.memory.OutOfMemoryError:
        pass
    return begin


def _tiled(
    memory: Memory,
    N: int,
    needs: Needs,
    more: float,
    sources: tuple[Any, ...],
    compute: Callable[..., Any],
    out: Any,
    fixed: float = 0,
    most: float = math.inf,
) -> None:
    """Compute N rows in tiles that fit, smaller ones each time that memory runs out.

    A row takes so many bytes ``more`` than its needs.
    """
    lanes = 0 if all(map(_is_here, (*sources, out))) else get_config()["n_streams"]
    rows = memory.tile_rows(N, needs, more, fixed, max(1, lanes))
    if lanes:
        most = min(most, max(_LEAST, math.ceil(N / _PIECES)))
    rows = int(min(rows, most))
    done = 0
    while True:
        if lanes:
            done = _run(memory, done, N, rows, sources, compute, out)
        else:
            done = _here(memory, done, N, rows, sources, compute)
        if done == N:
            return
        memory.pool.free_all_blocks()
        if rows == 1:
            raise _exhausted(memory, "one row of the hidden layer")
        rows //= 2


def _is_here(A: Any) -> bool:
    return A is None or is_resident(A)


def _exhausted(memory: Memory, what: str) -> MemoryError:
    megabytes, taken = (x / 2**20 for x in (memory.budget(), memory.pool.used_bytes()))
    return MemoryError(
        f"The GPU's memory does not hold {what}: the budget is {megabytes:.0f} MB, {taken:.0f} MB "
        "are taken. Raise GPURBF_GPU_MEMORY or config_context(gpu_memory=...), free memory of "
        "other programs, use fewer centers, or a backend on the CPU such as backend='numba'."
    )


def on_device(raw: Backend, needs: Callable[[Any], Needs]) -> Backend:
    """The `Backend` for arrays on either side of the bus, of one for arrays of the device only.

    Parameters
    ----------
    raw : Backend
        All arrays that its functions take are CuPy's (``C``, ``X``, ``out``, ``T``, ``w``,
        ``mean``, ``G``, ``B``), ``X`` is C-contiguous, a tile is given at a time, and the work goes
        to the current stream. ``weights`` makes `DeviceWeights` of an array of either side, and
        ``scores(operand, X, W, out)`` takes them. ``normal`` makes all that it makes before it
        changes G and B, so that it can be repeated where memory runs out.
    needs : callable
        ``needs(operand)``: memory that a row of X takes in any of these functions beside X and H.
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

        more = _row_size(X) + _row_size(out)
        _tiled(memory, len(X), needs(operand), more, (X,), compute, out)
        return out

    @ready
    def scores_here(operand: Any, X: Any, W: Any) -> Any:
        W = W if isinstance(W, DeviceWeights) else raw.weights(operand, W)
        S = (xp if is_resident(X) else np).empty((len(X), W.k), operand.dtype)

        def compute(part: slice, X: Any) -> Any:
            some = S[part] if is_resident(S) else xp.empty((len(X), W.k), operand.dtype)
            raw.scores(operand, X, W, some)
            return None if is_resident(S) else some

        _tiled(memory, len(X), needs(operand), _row_size(X) + _row_size(S), (X,), compute, S)
        return S

    @ready
    def normal_here(
        operand: Any, X: Any, T: Any, w: Any, mean: Any, G: Any, B: Any, grid: None = None
    ) -> None:
        mean = xp.asarray(mean)
        if is_resident(X):
            T, w = xp.asarray(T), w if w is None else xp.asarray(w)

        def compute(part: slice, X: Any, T: Any, w: Any) -> None:
            raw.normal(operand, X, T, w, mean, G, B)

        # H, and less its mean in float64; the square of a tile.
        more = _row_size(X) + 2 * _row_size(T) + len(B) * (operand.dtype.itemsize + 8)
        fixed = 0 if G is None else 2 * operand.dtype.itemsize * len(G) ** 2
        _tiled(memory, len(X), needs(operand), more, (X, T, w), compute, None, fixed, _SUMMED)

    return replace(
        raw,
        prepare=prepare_here,
        outputs=outputs_here,
        scores=scores_here,
        normal=normal_here,
        weights=ready(raw.weights),
        working=memory.working,
        room=memory.room,
    )


def _row_size(A: Any) -> int:
    """Bytes of a row."""
    return int(math.prod(A.shape[1:]) * A.dtype.itemsize)
