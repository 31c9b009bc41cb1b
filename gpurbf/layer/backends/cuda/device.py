"""A backend on a GPU: memory within a budget, tiles that fit, copies from and to the host.

A device backend supplies a subclass of `DeviceLayer`, which evaluates arrays on the device on the
current stream; `DeviceLayer` extends it to arrays on the host or the device. All work is on the
caller's stream, one tile after the other. If samples and results are on the device, there is one
tile if it fits, and the host does not wait. If samples are on the host, CuPy copies a tile through
pinned memory while the device still computes the tile before.

If memory runs out, the size of tiles is halved, and the work continues at the first row not done.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation, apply_own
from gpurbf.layer.backends import Backend
from gpurbf.layer.backends.blas.matmul import shifted
from gpurbf.layer.backends.numba.gram import Sums
from gpurbf.runtime.arrays import is_resident
from gpurbf.runtime.config import get_config
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.stages import FENCES, count, stage

# Share of the free memory that is the budget if none is given.
_SHARE = 0.8
# Bytes of a tile that is copied from or to the host, so that copies overlap with computation, and
# the minimum number of its rows.
_HOST_BYTES, _LEAST = 1 << 26, 2048
# Rows whose products are summed in the layer's dtype before they are added in float64.
_SUMMED = 4096
# The maximum number of rows of any tile: a grid has at most 65,535 bands of rows, 32 or more each.
_MOST = 65_535 * 32


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


class Memory:
    """The device memory that this process takes."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self.pool = xp.cuda.MemoryPool()
        self._process, self._device = os.getpid(), xp.cuda.runtime.getDevice()
        self._local = threading.local()
        FENCES.append(lambda: xp.cuda.Device().synchronize())

    def budget(self) -> int:
        """Bytes of the device that the pool may take; determined once per call."""
        if getattr(self._local, "budget", None) is not None:
            return self._local.budget
        megabytes = get_config()["gpu_memory"] or _environment_megabytes()
        if megabytes:  # a pool takes 0 for no limit, and no number of more than 64 bits
            return int(min(max(1.0, 2**20 * float(megabytes)), 2.0**62))
        free, _ = self.xp.cuda.runtime.memGetInfo()
        return int(_SHARE * (free + self.pool.total_bytes()) / processes())

    @contextmanager
    def allocator(self, what: str = "the arrays of this step") -> Iterator[None]:
        """Make arrays in the pool within the block; an error says that it does not hold ``what``.

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
        before, budget = getattr(self._local, "budget", None), self.budget()
        if self.pool.total_bytes() > budget:
            self.pool.free_all_blocks()
        self.pool.set_limit(size=budget)
        self._local.budget = budget
        try:
            with self.xp.cuda.using_allocator(self.pool.malloc):
                yield
        except self.xp.cuda.memory.OutOfMemoryError as error:
            traceback.clear_frames(error.__traceback__)  # frees what they made before it is counted
            raise _exhausted(self, what) from None
        finally:
            self._local.budget = before

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
    text = os.environ.get("GPURBF_GPU_MEMORY") or "0"
    with suppress(ValueError):
        if 0 <= (megabytes := float(text)) < math.inf:
            return megabytes
    raise ValueError(f"GPURBF_GPU_MEMORY must be a number of megabytes > 0, got {text!r}.")


# The one `Memory` of a process for all backends of a library.
memory_of = functools.cache(Memory)


def _there(xp: ModuleType, A: Any, part: slice) -> Any:
    """Rows of an array on the device."""
    if A is None or is_resident(A):
        return A if A is None else xp.ascontiguousarray(A[part])
    with stage("host to device", "rows"):
        copy = xp.asarray(A[part])
        count(nbytes=copy.nbytes)
    return copy


def _exhausted(memory: Memory, what: str) -> MemoryError:
    megabytes, taken = (x / 2**20 for x in (memory.budget(), memory.pool.used_bytes()))
    return MemoryError(
        f"The GPU's memory does not hold {what}: the budget is {megabytes:.0f} MB, {taken:.0f} MB "
        "are taken. Raise GPURBF_GPU_MEMORY or config_context(gpu_memory=...), free memory of "
        "other programs, use fewer centers, or a backend on the CPU such as backend='numba'."
    )


class DeviceLayer(ABC):
    """A layer for arrays on the host or the device: see `gpurbf.layer.backends.PreparedLayer`.

    A backend's subclass has `evaluate` and `pack`, for arrays on the device, a tile at a time, on
    the current stream. All arrays that they take are CuPy's, except W, which may also be on the
    host; X (N, n) is C-contiguous. Profiles that are callables are applied here.

    A subclass sets ``arithmetic``, the kind of its products, and ``row_bytes``, the memory that
    `evaluate` takes per row of X, besides X and H.
    """

    arithmetic: str
    row_bytes: int

    def __init__(
        self,
        memory: Memory,
        device: Device,
        C: Any,
        activation: Activation,
        dtype: Any,
        quantization: Quantization | None,
        shift: int = 0,
    ) -> None:
        """Say how samples and centers C (m, n), on the device, are shifted; codes by ``shift``."""
        self.memory, self.xp, self.device = memory, memory.xp, device
        self.activation, self.dtype, (self.m, n) = activation, np.dtype(dtype), C.shape
        self._profile = activation.profile if callable(activation.profile) else None
        self.distance = shifted(C, activation.metric, self.dtype, quantization, shift)
        # Centers in float64 may have a mean that float32 does not hold.
        self.shift = self.xp.empty(n, np.result_type(C.dtype, np.float32))
        self.shift[...] = self.distance.shift

    @abstractmethod
    def pack(self, W: Any) -> Any:
        """W (m, k) as `evaluate` reads it, an array (k, m or more)."""

    @abstractmethod
    def evaluate(self, X: Any, out: Any, W: Any = None) -> None:
        """Write H (N, m), or H @ W (N, k) for packed weights, into ``out``."""

    def _tiled(
        self,
        compute: Callable[..., None],
        more: float,
        sources: tuple[Any, ...],
        out: Any = None,
        most: int = _MOST,
    ) -> None:
        """Compute all rows in tiles that fit, smaller ones each time that memory runs out.

        A row takes ``more`` bytes in addition to the layer's needs. ``compute(rows of out, *rows of
        the sources)`` gets all its arguments on the device, and writes the first.
        """
        memory, N, done = self.memory, len(sources[0]), 0
        apart = 2 * self.m * self.dtype.itemsize if self._profile else 0
        fits = memory.free_bytes() / (self.row_bytes + apart + more)
        if not all(A is None or is_resident(A) for A in (*sources, out)):
            fits = min(fits, max(_LEAST, _HOST_BYTES / max(1.0, more)))
        rows = int(max(1, min(N, fits, most)))
        while done < N:
            part = slice(done, min(done + rows, N))
            target: Any = out[part] if is_resident(out) else None
            try:
                if out is not None and target is None:
                    target = memory.xp.empty((part.stop - done, *out.shape[1:]), out.dtype)
                compute(target, *(_there(memory.xp, A, part) for A in sources))
            except memory.xp.cuda.memory.OutOfMemoryError:
                memory.pool.free_all_blocks()
                if rows == 1:
                    raise _exhausted(memory, "one row of the hidden layer") from None
                rows //= 2
                continue
            if out is not None and not is_resident(out):
                with stage("back and evaluate", "to host"):
                    target.get(out=out[part])
                    count(nbytes=target.nbytes)
            done = part.stop

    def _write(self, W: Any, out: Any, X: Any) -> None:
        """Write H (N, m), or H @ W (N, k) unless W is None, into ``out``, on the device."""
        if not (out.size and self.m):
            out.fill(0)
            return
        with stage("hidden layer", "H" if W is None else "H @ W"):
            if W is not None and self._profile:
                H = self.xp.empty((len(X), self.m), self.dtype)
                self._write(None, H, X)
                out[...] = H @ W.T
            else:
                self.evaluate(X, out, W)
                if self._profile:
                    apply_own(self._profile, out)
                operations, nbytes = 2 * X.size * self.m, X.nbytes + out.nbytes
                count(operations=operations, kind=self.arithmetic, nbytes=nbytes)
            if W is not None:
                count(operations=2 * out.size * self.m, kind=self.dtype.name)

    def activations(self, X: Any, out: Any) -> None:
        """Write H (N, m) into ``out``."""
        with self.memory.allocator():
            self._tiled(partial(self._write, None), _row_size(X) + _row_size(out), (X,), out)

    def pack_weights(self, W: Any) -> Any:
        """Output weights W (m, k), on the host or the device, as `matvec` takes them."""
        with self.memory.allocator():
            own = self._profile is None and W.size
            packed = self.pack(W) if own else self.xp.asarray(W, self.dtype).T
            # Other streams will read the weights.
            self.xp.cuda.get_current_stream().synchronize()
        return packed

    def matvec(self, X: Any, W: Any) -> Any:
        """H @ W (N, k), on the host or the device, where X is."""
        with self.memory.allocator():
            S = (self.xp if is_resident(X) else np).empty((len(X), W.shape[0]), self.dtype)
            self._tiled(partial(self._write, W), _row_size(X) + _row_size(S), (X,), S)
            return S

    def gram(self, X: Any, T: Any, weights: Any, sums: Sums) -> None:
        """Add HᵀH, unless ``sums.G`` is None, and HᵀT to sums on the device."""
        with self.memory.allocator():
            add = partial(self._add_sums, sums._replace(mean=self.xp.asarray(sums.mean)))
            # Memory for H, and for H less its mean in float64.
            more = _row_size(X) + 2 * _row_size(T) + self.m * (self.dtype.itemsize + 8)
            self._tiled(add, more, (X, T, weights), most=_SUMMED)

    @stage("output training", "HᵀH")
    def _add_sums(self, sums: Sums, _: None, X: Any, T: Any, weights: Any) -> None:
        """Add HᵀH to the lower triangle of G, if any, and HᵀT to B, of H less its mean, weighted.

        G and B are float64 and C-contiguous. All memory is taken before they change, so this can be
        done again if memory runs out. If float64 is as fast as float32, H is converted to float64
        and cuBLAS adds to G itself; otherwise products of rows are float32 and added in float64.
        """
        from cupy import cublas  # `import cupy` does not import it

        xp, (G, B, mean) = self.xp, sums
        H = xp.empty((len(X), len(B)), self.dtype)
        self._write(None, H, X)
        kind = np.dtype(np.float64) if self.device.fast_doubles else H.dtype
        root = 1.0 if weights is None else xp.sqrt(weights)[:, None]
        move = _centered(xp)
        Z = move(H, mean, root, H if H.dtype == kind else xp.empty(H.shape, kind))
        targets = xp.ascontiguousarray(T, kind)
        if weights is not None:
            targets = move(targets, 0.0, root, xp.empty(T.shape, kind))
        products = Z.T @ targets
        if G is not None and Z.size:
            if kind == np.float64:
                cublas.syrk("T", Z, out=G, beta=1.0, lower=True)
            else:
                G += cublas.syrk("T", Z, out=xp.zeros(G.shape, kind), lower=True)
        B += products
        triangle = 0 if G is None else Z.shape[1] + 1
        count(operations=Z.size * (triangle + 2 * T.shape[1]), kind=kind.name)


@functools.cache
def _centered(xp: ModuleType) -> Any:
    return xp.ElementwiseKernel(
        "T h, R mean, R root", "Z z", "z = (Z(h) - Z(mean)) * Z(root);", "gpurbf_centered"
    )


def device_backend(
    name: str, xp: ModuleType, device: Device, kernel: str, make: Callable[..., DeviceLayer],
    precisions: tuple[str, ...] = (),
) -> Backend:  # fmt: skip
    """The backend of ``make(memory, device, C, activation, …)``, a `DeviceLayer`'s subclass."""
    # Made when the backend is loaded: a process must not look for a GPU before it forks.
    memory = memory_of(xp)

    def prepare(C: Any, *rest: Any, **precision: bool) -> DeviceLayer:
        with memory.allocator(f"{len(C)} centers of {C.shape[1]} inputs"):
            layer = make(memory, device, xp.asarray(C, order="C"), *rest, **precision)
            # Other streams will read the layer.
            xp.cuda.get_current_stream().synchronize()
        return layer

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
