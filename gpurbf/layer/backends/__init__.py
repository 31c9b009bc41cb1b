"""Backends: where the hidden layer is evaluated, and how one is chosen.

A backend is data, not a class: a name, an array namespace and four functions.

    network ─► prepare(C, activation, dtype, quantization) ─► operand   once per fitted layer
               outputs(operand, X, out)        H         (N, m)    H = phi(d(X, C))
               scores(operand, X, W)           H @ W     (N, k)    H never stored
               normal(operand, X, T, w, mean, G, B, grid=None)
                                       G += HᵀH, B += HᵀT  of H - mean, never stored

                                                 CPU             NVIDIA GPU
    distance by matrix product, fused activation `numpy`, `mkl`  `cupy`
    distance by BNL tiles, activation in tile    `numba`         `numba-cuda`

``LOADERS`` maps a name to a function that imports what the backend needs and returns it, so a
library is imported when its backend is asked for and never before. A name is obeyed or refused
(:class:`BackendUnavailable`); only ``"auto"`` chooses: it asks the names of ``GPUS`` and ``CPUS``
in that order, and takes the first that can run.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from gpurbf.layer.backends.tile import Tile
from gpurbf.runtime.config import get_config
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.once import once

__all__ = [
    "CPUS",
    "GPUS",
    "LOADERS",
    "Activation",
    "Backend",
    "BackendUnavailable",
    "Quantization",
    "Tile",
    "available_backends",
    "get_backend",
    "in_order",
]


# Operations a second of one core in the float32 tiles (docs/benchmarks/layer.md), and bytes a
# second over PCI Express 4 from pinned memory, less than its 25 GB/s because samples are first
# copied there. The second is an assumption: not measured on a GPU.
_CORE_RATE, _BUS_RATE = 1e11, 1.2e10


class Indexed(NamedTuple):
    """The layer of samples and centers that are rows of one array, not copied.

    ``like(X, activation, dtype, quantization)`` is an operand without centers and the array X
    as the other two take it, or None where rows would have to be copied all the same;
    ``prepare(operand, X, chosen, fresh)`` is that one with X[chosen] for centers, and itself if
    it is told that its own were the same but for the slice of fresh ones;
    ``outputs(operand, X, chosen, out, places)`` writes H of X[chosen] into those rows of ``out``,
    the first ones if ``places`` is None.
    """

    like: Callable[..., Any]
    prepare: Callable[..., Any]
    outputs: Callable[..., None]


@dataclass(frozen=True)
class Backend:
    """One way to evaluate the hidden layer; the functions' contract is in the package docstring.

    ``kernel`` says what does the work here.

    ``X`` and ``C`` are uint8 codes when a quantization is given, otherwise real numbers.
    ``outputs`` writes float32 or float64 (the operand's dtype) into ``out``, an (N, m) array;
    ``scores`` takes output weights as an array or as what ``weights(operand, W)`` made of one.
    ``normal`` sums into float64 arrays, the samples weighted by ``w`` unless it is None. It takes
    ``mean`` (m,) off every row of H first: sums of what is left lose fewer digits.

    ``indexed`` is None where rows would have to be copied first.

    ``device`` names the GPU, or is empty for the CPU. ``tiled``: activations are used where they
    are made and do not go through memory. ``tiles`` are candidates for
    layers of a metric, "euclidean" or "manhattan", that the paper's experiment compares.

    A backend whose ``xp`` is not NumPy takes host arrays too, and gives back what it was given:
    host arrays for host samples, its own for samples that are on the device. ``out``, ``T`` and
    ``w`` may be on either side; ``G`` and ``B`` are its own. What is computed with ``xp`` inside
    ``working()`` counts against the device's memory budget, of which ``room()`` bytes are left.
    ``normal`` takes a grid after ``B`` where ``exact_sums()``, see `sums`. Of ``G`` it may leave
    the upper triangle as it is; a ``G`` that is None asks for HᵀT alone.
    ``precisions`` names the arithmetic that ``prepare`` takes as a keyword beyond exact, float32
    and float64: ``tf32=True``.
    """

    name: str
    xp: ModuleType
    kernel: str
    prepare: Callable[..., Any]
    outputs: Callable[..., Any]
    scores: Callable[..., Any]
    normal: Callable[..., Any]
    weights: Callable[..., Any] = lambda operand, W: W
    indexed: Indexed | None = None
    device: str = ""
    tiled: bool = True
    tiles: Mapping[str, tuple[Tile, ...]] = field(default_factory=dict)
    precisions: tuple[str, ...] = ()
    working: Callable[[], AbstractContextManager[None]] = nullcontext
    room: Callable[[], float] = lambda: math.inf
    exact_sums: Callable[[], bool] = lambda: False


def _module(name: str) -> Callable[[], Backend]:
    """A loader that imports ``gpurbf.layer.backends.<name>`` and calls its ``load``."""
    return lambda: importlib.import_module(f"gpurbf.layer.backends.{name}").load()


def _gpu_module(name: str) -> Callable[[], Backend]:
    """The same, if there is anything to import it for."""

    def load() -> Backend:
        if why := no_gpu():
            raise BackendUnavailable(why)
        return _module(name)()

    return load


LOADERS: dict[str, Callable[[], Backend]] = {
    "cupy": _gpu_module("cuda.cupy_"),
    "numba-cuda": _gpu_module("cuda.numba_cuda"),
    "numba": _module("numba.backend"),
    "mkl": _module("blas.mkl"),
    "numpy": _module("blas.numpy_"),
}
# What "auto" asks, in order: GPUs where the work outweighs the transfer, the tiles after `cupy`
# until they are measured on one. On CPUs tiles in vector or matrix instructions were measured
# faster than every BLAS product tried, in float64 too.
GPUS = ["cupy", "numba-cuda"]
CPUS = ["numba", "mkl", "numpy"]


def in_order(gpus: bool) -> Iterator[str]:
    """The names of backends as "auto" asks for them, those on GPUs only if they are wanted."""
    if gpus:
        yield from GPUS
    from gpurbf.layer.backends.numba import cpu_kernel

    try:
        plain = cpu_kernel.choose_kernel()[0] == "generic"
    except BackendUnavailable:  # a kernel was demanded that the backend will refuse
        plain = False
    yield from sorted(CPUS, key="numba".__eq__) if plain else CPUS


def no_gpu() -> str | None:
    """Why no GPU can be used, as far as that is known without importing its library."""
    return None if "cupy" in sys.modules else _no_gpu()


@functools.cache
def _no_gpu() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return (
            'no CuPy: in a copy of gpurbf, pip install ".[cuda12]" or ".[cuda13]", whichever the '
            "driver has (nvidia-smi says)"
        )
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError as error:
        return f"no NVIDIA driver ({error}): check nvidia-smi"
    return None


@once
def _attempt(loader: Callable[[], Backend]) -> Backend | Exception:
    """The backend, or the error of its loader, which is kept: a failure may be slow to find."""
    try:
        return loader()
    except Exception as error:  # libraries that are half installed fail in every way
        return error


def _why(error: Exception) -> str:
    own = isinstance(error, BackendUnavailable)
    return str(error) if own else f"{type(error).__name__}: {error}"


def _load(name: str) -> Backend:
    found = _attempt(LOADERS[name])
    if isinstance(found, Exception):
        raise BackendUnavailable(_why(found)) from found
    return found


def get_backend(
    name: str = "auto", n_centers: int | None = None, on_host: str = ""
) -> tuple[Backend, str]:
    """The backend of that name and the reason it was taken.

    Parameters
    ----------
    name : str
        A key of ``LOADERS``, or ``"auto"``: ``config_context(backend=...)``, then the environment
        variable ``GPURBF_BACKEND``, then the first of ``GPUS`` and ``CPUS`` that can run. Those
        after it are not asked, so their libraries are not imported.
    n_centers : int, optional
        Of the layer: "auto" takes a GPU only for layers of so many centers that the work outweighs
        the transfer of the samples. None: enough.
    on_host : str, optional
        Why "auto" shall not take a GPU, if so.

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
        elif (wanted := os.environ.get("GPURBF_BACKEND", "auto")) != "auto":
            name, reason = wanted, f"GPURBF_BACKEND={wanted}"
    if name != "auto":
        if name not in LOADERS:
            raise ValueError(f"Unknown backend {name!r}: use 'auto' or one of {sorted(LOADERS)}.")
        return _load(name), reason
    said, gpus = "auto:", no_gpu() is None
    if gpus and on_host:
        said, gpus = f"auto: {on_host};", False
    elif gpus:
        least = _centers_worth_a_transfer()
        gpus = n_centers is None or n_centers >= least
        worth = "worth" if gpus else "not worth"
        said = f"auto: a GPU is {worth} the transfer (from {least} centers);"
    refused: dict[str, str] = {}
    for name in in_order(gpus):
        found = _attempt(LOADERS[name])
        if isinstance(found, Backend):
            asked = ", ".join((*refused, name))
            return found, f"{said} the first that can run of those asked: {asked}"
        refused[name] = _why(found)
    raise BackendUnavailable("; ".join(f"{name}: {why}" for name, why in refused.items()))


def _centers_worth_a_transfer() -> int:
    """Centers m from which copying samples to a GPU takes less time than the layer on the CPU.

    A sample of n float32 inputs is 4 n bytes on the bus and 2 n m operations: the layer is worth
    it from m = 2 bytes x (the CPU's operations) / (the bus's bytes) a second on, whatever n.
    """
    return int(2 * _CORE_RATE * (os.cpu_count() or 1) / _BUS_RATE)


def available_backends() -> dict[str, str | None]:
    """Every backend's name with None if it can run here, else why it cannot."""
    attempts = {name: _attempt(LOADERS[name]) for name in LOADERS}
    return {
        name: _why(found) if isinstance(found, Exception) else None
        for name, found in attempts.items()
    }
