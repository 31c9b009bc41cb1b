"""Backends: where the hidden layer is evaluated, and how one is chosen.

A backend is data, not a class: a name, an array namespace and four functions.

    network ─► prepare(C, activation, dtype, lattice) ─► operand   once per fitted layer
               outputs(operand, X, out)        H         (N, m)    H = phi(d(X, C))
               scores(operand, X, W)           H @ W     (N, k)    H never stored
               normal(operand, X, T, w, mean, G, B)
                                       G += HᵀH, B += HᵀT  of H - mean, never stored

                                                 CPU             NVIDIA GPU
    distance by matrix product, fused activation `numpy`, `mkl`  `cupy`
    distance by BNL tiles, activation in tile    `numba`         `numba-cuda`

``LOADERS`` maps a name to a function that imports what the backend needs and returns it, so a
library is imported when its backend is asked for and never before. A name is obeyed or refused
(:class:`BackendUnavailable`); only ``"auto"`` chooses.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy

from gpurbf._config import get_config

__all__ = [
    "LOADERS",
    "Activation",
    "Backend",
    "BackendUnavailable",
    "Lattice",
    "Tile",
    "available_backends",
    "get_backend",
]

# Operations a second of one core in the float32 tiles (docs/benchmarks/layer.md), and bytes a
# second over PCI Express 4 from pinned memory, less than its 25 GB/s because samples are first
# copied there. The second is an assumption: not measured on a GPU.
_CORE_RATE, _BUS_RATE = 1e11, 1.2e10


class Activation(NamedTuple):
    """What a hidden unit computes: ``profile(gamma, metric(x, c))``, all scalars."""

    metric: str
    profile: str | Callable
    gamma: float = 1.0
    coef0: float = 0.0
    degree: int = 3


class Lattice(NamedTuple):
    """Data on it are ``(code - zero) / denominator`` with codes 0..255 kept as uint8."""

    denominator: float
    zero: int


class Tile(NamedTuple):
    """How a layer is cut; a backend has some of these, and None is its default.

    ``M``: samples of a tile, and neurons too where it is square. ``B``: threads of a GPU's block.
    ``threads``: CPU threads, or GPU streams, at work at a time.
    """

    M: int | None = None
    B: int | None = None
    threads: int | None = None

    def __str__(self) -> str:
        stated = [f"{key} {value:g}" for key, value in self._asdict().items() if value is not None]
        return ", ".join(stated) or "default"


class BackendUnavailable(RuntimeError):
    """A backend that was asked for by name cannot run here; the message says how to get it."""


@dataclass(frozen=True)
class Backend:
    """One way to evaluate the hidden layer; the functions' contract is in the package docstring.

    ``kernel`` says what does the work here. "auto" takes the backend of the largest ``preference``:
    more than 3 on a GPU, 3 for tiles in vector or matrix instructions (measured faster than every
    BLAS product tried, in float64 too), 2 for MKL, 1 for NumPy, 0 for tiles in plain compiled code.

    ``X`` and ``C`` are uint8 lattice codes when a lattice is given, otherwise real numbers.
    ``outputs`` writes float32 or float64 (the operand's dtype) into ``out``, an (N, m) array;
    ``scores`` takes output weights as an array or as what ``weights(operand, W)`` made of one.
    ``normal`` sums into float64 arrays, the samples weighted by ``w`` unless it is None. It takes
    ``mean`` (m,) off every row of H first: sums of what is left lose fewer digits.

    ``device`` names the GPU, or is empty for the CPU. ``tiles`` are the candidates that the tuner
    measures for layers of a metric, "euclidean" or "manhattan"; ``prepare`` asks
    ``tuning.tile_for`` which to take.

    A backend whose ``xp`` is not NumPy takes host arrays too, and gives back what it was given:
    host arrays for host samples, its own for samples that are on the device. ``out``, ``T`` and
    ``w`` may be on either side; ``G`` and ``B`` are its own. What is computed with ``xp`` inside
    ``working()`` counts against the device's memory budget, of which ``room()`` bytes are left.
    ``precisions`` names the arithmetic that ``prepare`` takes as a keyword beyond exact, float32
    and float64: ``tf32=True``.
    """

    name: str
    xp: ModuleType
    kernel: str
    preference: int
    prepare: Callable[..., Any]
    outputs: Callable[..., Any]
    scores: Callable[..., Any]
    normal: Callable[..., Any]
    weights: Callable[..., Any] = lambda operand, W: W
    device: str = ""
    tiles: Mapping[str, tuple[Tile, ...]] = field(default_factory=dict)
    precisions: tuple[str, ...] = ()
    working: Callable[[], AbstractContextManager[None]] = nullcontext
    room: Callable[[], float] = lambda: math.inf


def _module(name: str) -> Callable[[], Backend]:
    """A loader that imports ``gpurbf.backends.<name>`` and calls its ``load``."""
    return lambda: importlib.import_module(f"gpurbf.backends.{name}").load()


LOADERS: dict[str, Callable[[], Backend]] = {
    "cupy": _module("cupy_"),
    "numba-cuda": _module("numba_cuda"),
    "numba": _module("numba_"),
    "mkl": _module("mkl"),
    "numpy": _module("numpy_"),
}


@functools.cache
def _attempt(loader: Callable[[], Backend]) -> Backend | str:
    """What the loader gives, or why it cannot: a failure may be slow to find, and so is kept."""
    try:
        return loader()
    except BackendUnavailable as error:
        return str(error)


def _load(name: str) -> Backend:
    found = _attempt(LOADERS[name])
    if isinstance(found, str):
        raise BackendUnavailable(found)
    return found


def get_backend(name: str = "auto", n_centers: int | None = None) -> tuple[Backend, str]:
    """The backend of that name and the reason it was taken.

    Parameters
    ----------
    name : str
        A key of ``LOADERS``, or ``"auto"``: ``config_context(backend=...)``, then the environment
        variable ``GPURBF_BACKEND``, then the available one of the largest preference.
    n_centers : int, optional
        Of the layer: "auto" takes a GPU only for layers of so many centers that the work outweighs
        the transfer of the samples. None: enough.

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
    found = [_load(name) for name, problem in available_backends().items() if problem is None]
    on_host = [backend for backend in found if backend.xp is numpy]
    reason, least = "auto:", _centers_worth_a_transfer()
    if len(on_host) < len(found):
        worth = n_centers is None or n_centers >= least
        reason = (
            f"auto: a GPU is {'' if worth else 'not '}worth the transfer (from {least} centers);"
        )
        found = found if worth else on_host
    best = max(found, key=lambda backend: backend.preference)
    return best, f"{reason} the fastest of " + ", ".join(backend.name for backend in found)


def _centers_worth_a_transfer() -> int:
    """Centers m from which copying samples to a GPU takes less time than the layer on the CPU.

    A sample of n float32 inputs is 4 n bytes on the bus and 2 n m operations: the layer is worth
    it from m = 2 bytes x (the CPU's operations) / (the bus's bytes) a second on, whatever n.
    """
    return int(2 * _CORE_RATE * (os.cpu_count() or 1) / _BUS_RATE)


def available_backends() -> dict[str, str | None]:
    """Every backend's name with None if it can run here, else why it cannot."""
    attempts = {name: _attempt(loader) for name, loader in LOADERS.items()}
    return {name: found if isinstance(found, str) else None for name, found in attempts.items()}
