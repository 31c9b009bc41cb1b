"""A backend on a GPU: memory within a budget, tiles on several streams, copies beside the work.

A device backend brings a layer of arrays of the device that works on the current stream
(`OnDevice`); `DeviceLayer` makes it one for arrays on either side of the bus. Where samples and
results are on the device, that is all there is: one tile if it fits, on the caller's stream, and
nobody waits. From and to the host,

    lane 0   copy in 0 │ compute 0 │ copy out 0 │ copy in 2 │ compute 2 │ …
    lane 1             │ copy in 1 │ compute 1  │ copy out 1 │ …

A lane is a stream with pinned buffers for its tile. Sums over tiles (`gram`) are added in the
order of the tiles, each after an event of the one before, so that the number of lanes changes no
bit. Where memory runs out, what is under way is finished, the tile is halved, and the work goes on
with the first row that is not done.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import Backend
from gpurbf.layer.backends.cuda.gram import add_sums
from gpurbf.layer.backends.cuda.memory import Device, DeviceWeights, Memory, Needs, memory_of
from gpurbf.layer.backends.numba.gram import Grid
from gpurbf.runtime.arrays import is_resident
from gpurbf.runtime.config import get_config
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, thread_limit

# Tiles that a large input is cut into, so that copies have work to hide behind, and their least
# rows.
_PIECES, _LEAST = 8, 2048
# Rows whose products are summed in the layer's dtype before they are added in float64.
_SUMMED = 4096
# Bytes that take longer to copy than a thread to wake.
_MIN_BYTES_PER_THREAD = 1 << 21


def copy_rows(to: np.ndarray, rows: np.ndarray) -> None:
    """``to[...] = rows`` by several threads: one does not copy as fast as a bus takes it."""
    n = max(1, min(thread_limit(), len(to), to.nbytes // _MIN_BYTES_PER_THREAD))

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
                copy_rows(rows, target)
                count(nbytes=target.nbytes)
            self._pending = None

    def _rows(self, i: int, source: Any, part: slice) -> Any:
        rows = source[part]
        if is_resident(rows):
            return self.xp.ascontiguousarray(rows)
        with stage("host to device", "rows"):
            staged = self._buffer(i, rows.shape, rows.dtype)
            copy_rows(staged, rows)
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
    """Compute arrays on the device in tiles, on the caller's stream; nobody waits."""
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


class OnDevice(Protocol):
    """A backend's layer on arrays of the device, a tile at a time, on the current stream.

    All arrays that its methods take are CuPy's but for W, which is of either side, and X (N, n) is
    C-contiguous. ``needs`` is the memory that a row of X takes in any of them beside X and H.
    A profile that is a callable is left to `DeviceLayer`.
    """

    dtype: np.dtype
    m: int
    activation: Activation

    @property
    def needs(self) -> Needs:
        """Bytes of a row."""

    def activations(self, X: Any, out: Any) -> None:
        """Write H (N, m) into ``out``."""

    def pack_weights(self, W: Any) -> DeviceWeights:
        """W (m, k) as `matvec` reads it."""

    def matvec(self, X: Any, W: DeviceWeights, out: Any) -> None:
        """Write H @ W (N, k) into ``out``."""


class DeviceLayer:
    """A layer for arrays on either side of the bus: see `gpurbf.layer.backends.PreparedLayer`."""

    def __init__(self, memory: Memory, device: Device, layer: OnDevice) -> None:
        self._memory, self._device, self._layer = memory, device, layer
        self._profile = layer.activation.profile if callable(layer.activation.profile) else None
        self.dtype, needs = layer.dtype, layer.needs
        apart = 2 * layer.m * self.dtype.itemsize if self._profile else 0
        self._needs = needs._replace(row=needs.row + apart)

    def _write(self, X: Any, out: Any) -> None:
        """Write H (N, m) into ``out``, the device's."""
        if out.size:
            self._layer.activations(X, out)
            if self._profile:
                out[...] = self._profile(out)

    def _write_scores(self, X: Any, W: DeviceWeights, out: Any) -> None:
        """Write H @ W (N, k) into ``out``, the device's."""
        if not (out.size and self._layer.m):
            out.fill(0)
        elif self._profile is None:
            self._layer.matvec(X, W, out)
        else:
            H = self._memory.xp.empty((len(X), self._layer.m), self.dtype)
            self._write(X, H)
            out[...] = H @ W.values

    def activations(self, X: Any, out: Any) -> None:
        """Write H (N, m) into ``out``."""
        xp = self._memory.xp

        def compute(part: slice, X: Any) -> Any:
            H = out[part] if is_resident(out) else xp.empty((len(X), out.shape[1]), out.dtype)
            self._write(X, H)
            return None if is_resident(out) else H

        with self._memory.allocator():
            more = _row_size(X) + _row_size(out)
            _tiled(self._memory, len(X), self._needs, more, (X,), compute, out)

    def pack_weights(self, W: Any) -> DeviceWeights:
        """Output weights W (m, k), of either side, as `matvec` takes them."""
        with self._memory.allocator():
            if self._profile is None and W.size:
                return self._layer.pack_weights(W)
            return DeviceWeights(self._memory.xp.asarray(W, self.dtype), W.shape[1])

    def matvec(self, X: Any, W: DeviceWeights) -> Any:
        """H @ W (N, k), on the side of X."""
        xp = self._memory.xp

        def compute(part: slice, X: Any) -> Any:
            some = S[part] if is_resident(S) else xp.empty((len(X), W.k), self.dtype)
            self._write_scores(X, W, some)
            return None if is_resident(S) else some

        with self._memory.allocator():
            S = (xp if is_resident(X) else np).empty((len(X), W.k), self.dtype)
            more = _row_size(X) + _row_size(S)
            _tiled(self._memory, len(X), self._needs, more, (X,), compute, S)
            return S

    def gram(
        self, X: Any, T: Any, weights: Any, mean: Any, G: Any, B: Any, grid: Grid | None = None
    ) -> None:
        """Add HᵀH to G (m, m), if any, and HᵀT to B (m, k), the device's, of H less its mean."""
        xp, itemsize = self._memory.xp, self.dtype.itemsize

        def compute(part: slice, X: Any, T: Any, weights: Any) -> None:
            H = xp.empty((len(X), len(B)), self.dtype)
            self._write(X, H)
            # Makes all that it makes before it adds: where memory runs out it can be done again.
            add_sums(xp, self._device, H, T, weights, mean, G, B)

        with self._memory.allocator():
            mean = xp.asarray(mean)
            if is_resident(X):
                T, weights = xp.asarray(T), None if weights is None else xp.asarray(weights)
            # H, and less its mean in float64; the square of a tile.
            more = _row_size(X) + 2 * _row_size(T) + len(B) * (itemsize + 8)
            fixed = 0 if G is None else 2 * itemsize * len(G) ** 2
            sources = X, T, weights
            _tiled(self._memory, len(X), self._needs, more, sources, compute, None, fixed, _SUMMED)


def device_backend(
    name: str, xp: ModuleType, device: Device, kernel: str, make: Callable[..., OnDevice],
    precisions: tuple[str, ...] = (),
) -> Backend:  # fmt: skip
    """The backend of ``make(C, activation, dtype, quantization)``, with C on the device."""
    # Made now, because looking for a GPU is what a process must not do before it forks.
    memory = memory_of(xp)

    def prepare(C: Any, *rest: Any, **precision: bool) -> DeviceLayer:
        with memory.allocator():
            try:
                layer = make(xp.ascontiguousarray(xp.asarray(C)), *rest, **precision)
            except xp.cuda.memory.OutOfMemoryError:
                layer = None
            if layer is None:
                raise _exhausted(memory, f"{len(C)} centers of {C.shape[1]} inputs")
            # Other streams will read it.
            xp.cuda.get_current_stream().synchronize()
        return DeviceLayer(memory, device, layer)

    return Backend(
        name=name,
        xp=xp,
        kernel=f"{kernel}; {device.name}",
        prepare=prepare,
        device=device.name,
        precisions=precisions,
        allocator=memory.allocator,
        free_bytes=memory.free_bytes,
    )


def _row_size(A: Any) -> int:
    """Bytes of a row."""
    return int(math.prod(A.shape[1:]) * A.dtype.itemsize)
