"""Backends: where the hidden layer is evaluated, and how a backend is chosen.

    layer ─► backend.prepare(C, activation, dtype, quantization) ─► PreparedLayer   once a layer
                 .activations(X, out)    H      (N, m)   H = phi(d(X, C))
                 .matvec(X, W)           H @ W  (N, k)   H never stored;  W = .pack_weights(W)
                 .gram(X, T, …, sums)    HᵀH and HᵀT of H - mean, never stored

                                                 CPU             NVIDIA GPU
    distance by matrix product, fused activation `numpy`, `mkl`  `cupy`
    distance by BNL tiles, activation in tile    `numba`         `numba-cuda`

A BNL (basic neural layer: Dogaru and Dogaru, 2017) is a tile of samples × centers.

``LOADERS`` maps a name to a function that imports what the backend needs and returns the backend,
so a library is imported only if its backend is requested. A named backend is used, or
:class:`BackendUnavailable` is raised; only ``"auto"`` chooses: a GPU of ``GPUS`` if its check in a
separate process finds it correct and faster, else the first of ``CPUS`` that can run. A backend on
a GPU is checked before it is used, however it was chosen (`cuda/check.py`).

A layer keeps the tile that it was prepared with: the backend's default, or the one that `forced`
sets for the thread. The tile changes the speed of a layer, not its results.

    with forced(Tile(M=96)):
        layer = HiddenLayer(C, activation)
        layer.activations(X)      # blocks of 96 samples, now and whenever this layer is used
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gpurbf.runtime.config import get_config
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module, once

if TYPE_CHECKING:
    from gpurbf.layer.backends.numba.gram import Sums
    from gpurbf.layer.backends.numba.matvec import GroupedWeights
    from gpurbf.layer.backends.numba.tile_layer import TilesAmong

check = lazy_module("gpurbf.layer.backends.cuda.check")
cpu_kernel = lazy_module("gpurbf.layer.backends.numba.cpu_kernel")
# How to install the libraries for GPUs.
INSTALL = (
    'in a copy of gpurbf, pip install ".[cuda12]" or ".[cuda13]", whichever the driver has '
    "(nvidia-smi says)"
)


class PreparedLayer(Protocol):
    """Centers C (m, n) as a backend takes them, in one arithmetic: H[i, j] = phi(d(x_i, c_j)).

    X (N, n) is uint8 codes if the layer was prepared with a quantization, otherwise real numbers.
    Arrays are NumPy's or, for a GPU, on the host or the device: results are where the samples are.
    """

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the activations, float32 or float64."""

    def activations(self, X: np.ndarray, out: np.ndarray) -> None:
        """Write H into ``out``, an array (N, m) of the layer's dtype."""

    def pack_weights(self, W: np.ndarray | GroupedWeights) -> Any:
        """Output weights W (m, k) in the form in which `matvec` takes them."""

    def matvec(self, X: np.ndarray, W: Any) -> np.ndarray:
        """H @ W, shape (N, k), for packed weights."""

    def gram(self, X: np.ndarray, T: np.ndarray, weights: np.ndarray | None, sums: Sums) -> None:
        """Add HᵀH and HᵀT to the sums, for targets T (N, k).

        Samples are weighted by ``weights`` (N,) unless that is None.
        """


@dataclass(frozen=True)
class Backend:
    """One way to evaluate the hidden layer.

    ``prepare(C, activation, dtype, quantization)`` gives a `PreparedLayer`; ``precisions`` names
    the arithmetic, beyond exact, float32 and float64, that it takes as a keyword: ``tf32=True``.
    ``among(X, activation, dtype, quantization)`` gives layers whose centers and samples are rows of
    X, not copied (`numba.tile_layer.TilesAmong`); it is None if the backend would have to copy
    them.

    ``kernel`` describes the kernels in use; ``device`` names the GPU, or is empty for the CPU.
    ``tiled``: activations are used in the tile that computes them, without going through memory.

    Arrays of ``xp`` that are made inside ``allocator()`` count against the device's memory budget,
    of which ``free_bytes()`` are left. ``exact_sums()`` says whether its layers, on a
    CPU, are summed on a grid (`numba.gram.add_rounded`).
    """

    name: str
    xp: ModuleType
    kernel: str
    prepare: Callable[..., PreparedLayer]
    among: Callable[..., TilesAmong] | None = None
    device: str = ""
    tiled: bool = True
    precisions: tuple[str, ...] = ()
    allocator: Callable[[], AbstractContextManager[None]] = nullcontext
    free_bytes: Callable[[], float] = lambda: math.inf
    exact_sums: Callable[[], bool] = lambda: False


def _load(module: str) -> Backend:
    """Import ``gpurbf.layer.backends.<module>`` and call its ``load``.

    For a GPU, refuse first if CuPy or NVIDIA's driver is missing.
    """
    if module.startswith("cuda.") and (why := no_gpu()):
        raise BackendUnavailable(why)
    return importlib.import_module(f"gpurbf.layer.backends.{module}").load()


LOADERS: dict[str, Callable[[], Backend]] = {
    "cupy": functools.partial(_load, "cuda.cupy_"),
    "numba-cuda": functools.partial(_load, "cuda.numba_cuda"),
    "numba": functools.partial(_load, "numba.tile_layer"),
    "mkl": functools.partial(_load, "blas.mkl"),
    "numpy": functools.partial(_load, "blas.numpy_"),
}
# The backends that "auto" tries, in order. On an H100 `cupy` is as fast as the tiles for 8-bit
# data, twice as fast for others, and starts sooner. On CPUs tiles with vector or matrix
# instructions were measured faster than every BLAS product tried, in float64 too.
GPUS = ["cupy", "numba-cuda"]
CPUS = ["numba", "mkl", "numpy"]


def best_on_host() -> tuple[Backend, list[str]]:
    """Return the CPU backend that "auto" takes, and the names before it that cannot run."""
    plain = cpu_kernel.choose_kernel()[0] == "generic"
    refused: dict[str, str] = {}
    for name in sorted(CPUS, key="numba".__eq__) if plain else CPUS:
        found = _attempt(LOADERS[name])
        if isinstance(found, Backend):
            return found, list(refused)
        refused[name] = why_of(found)
    raise BackendUnavailable("; ".join(f"{name}: {why}" for name, why in refused.items()))


def no_gpu() -> str | None:
    """Why no GPU can be used, as far as that is known without importing its library."""
    return None if "cupy" in sys.modules else _no_gpu()


@functools.cache
def _no_gpu() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return f"no CuPy: {INSTALL}"
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError as error:
        return f"no NVIDIA driver ({error}): check nvidia-smi"
    return None


@once
def _attempt(loader: Callable[[], Backend]) -> Backend | Exception:
    """The backend, or the error of its loader; errors are kept too, as failing may be slow."""
    try:
        backend = loader()
        if backend.device:
            with forced(Tile()):  # not that of whoever asks first
                check.require(backend)
        return backend
    except Exception as error:  # incomplete installations raise any error
        return error


def why_of(error: Exception) -> str:
    """The words of a loader's error, with its type if it is not the package's own."""
    own = isinstance(error, BackendUnavailable)
    return str(error) if own else f"{type(error).__name__}: {error}"


def get_backend(
    name: str = "auto", n_centers: int | None = None, on_host: str = "", metric: str = ""
) -> tuple[Backend, str]:
    """The backend of that name and the reason it was taken.

    Parameters
    ----------
    name : str
        A key of ``LOADERS``, or ``"auto"``: ``config_context(backend=...)``, then the environment
        variable ``GPURBF_BACKEND``, then the first of ``GPUS`` whose check succeeds, then the
        first of ``CPUS`` that can run. Later ones are not tried, so their libraries are not
        imported.
    n_centers : int, optional
        Number of centers of the layer: "auto" takes a GPU only if there are so many centers that
        the work outweighs the transfer of the samples. None: there are enough.
    on_host : str, optional
        The reason why "auto" must not take a GPU, if there is one.
    metric : str, optional
        That of the layer: for "manhattan" "auto" takes no `cupy`, which would need the tiles of
        `numba-cuda`.

    Returns
    -------
    backend : Backend
    reason : str

    Raises
    ------
    ValueError
        If the name is unknown.
    BackendUnavailable
        If the named backend cannot run on this machine.
    """
    reason = f"backend={name!r}"
    if name == "auto":
        if (configured := get_config()["backend"]) != "auto":
            name, reason = configured, f"config backend={configured!r}"
        elif (wanted := os.environ.get("GPURBF_BACKEND") or "auto") != "auto":
            name, reason = wanted, f"GPURBF_BACKEND={wanted}"
    if name != "auto":
        if not isinstance(name, str) or name not in LOADERS:
            known = sorted(LOADERS)
            raise ValueError(f"Unknown backend {name!r} ({reason}): use 'auto' or one of {known}.")
        named = _attempt(LOADERS[name])
        if isinstance(named, MemoryError):  # of this moment: the next call tries again
            _attempt.cache_clear()
        if isinstance(named, Exception):
            setting = "" if reason == f"backend={name!r}" else f"{reason}: "
            raise BackendUnavailable(setting + why_of(named)) from named
        return named, reason
    said, found = ["chosen automatically"], None
    if no_gpu() is None:
        cpu_kernel.choose_kernel()  # its error would be kept as a verdict on the GPU
        found, why = (None, [on_host]) if on_host else _on_gpu(n_centers, metric)
        said += why
    if found is None:
        found, refused = best_on_host()
        if refused:
            said.append(f"{', '.join(refused)} cannot run here")
    return found, "; ".join(said)


def _on_gpu(n_centers: int | None, metric: str) -> tuple[Backend | None, list[str]]:
    """The first GPU backend that is correct and worth the transfer, or None; and the reasons."""
    said = []
    for name in ["numba-cuda"] if metric == "manhattan" else GPUS:
        verdict = check.trusted(name)
        if verdict.why:
            again = "`python -m gpurbf check-gpu` checks again"
            said.append(f"{name} is not used: {verdict.why} ({again})")
            continue
        least = centers_worth_a_transfer(**verdict.rates)
        worth = n_centers is None or n_centers >= least
        said.append(
            f"by its measured rates a GPU is {'' if worth else 'not '}worth the transfer "
            + (f"from {math.ceil(least):,} centers on" if least < math.inf else "of any samples")
        )
        if not worth:
            break
        found = _attempt(LOADERS[name])
        if isinstance(found, Backend):
            return found, said
        said.append(f"{name} is not used: {why_of(found)}")
    return None, said


def centers_worth_a_transfer(device: float, host: float, copy: float) -> float:
    """Number of centers m from which copying samples to a GPU and computing there beats the CPU.

    A sample of n float32 inputs is 4 n bytes on the bus and 2 n m operations; with these rates per
    second: 4 n / copy + 2 n m / device < 2 n m / host, whatever n.
    """
    gain = 1 / host - 1 / device
    return 2 / copy / gain if gain > 0 else math.inf


_local = threading.local()


class Tile(NamedTuple):
    """The sizes of a layer's tiles; a backend uses some of them, and None is its default.

    ``M``: samples of a tile, and centers too if it is square. ``B``: a GPU's block has B × B
    threads.
    """

    M: int | None = None
    B: int | None = None


@contextmanager
def forced(tile: Tile) -> Iterator[None]:
    """Layers prepared in this block, by this thread, take this tile; None is the default."""
    if any(value is not None and not value > 0 for value in tile):
        raise ValueError(f"{tile}: what a tile states must be > 0.")
    before = forced_tile()
    _local.tile = tile
    try:
        yield
    finally:
        _local.tile = before


def forced_tile() -> Tile:
    """The tile that `forced` sets for this thread; ``Tile()`` is the backend's default."""
    return getattr(_local, "tile", Tile())
