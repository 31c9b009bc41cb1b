"""A GPU's limits: matrix products and copies, by CUDA events."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.layer.backends.cuda.cupy_ import product_of

# Kinds of product that cuBLAS is asked for: dtype of the layer, whether quantized, whether TF32.
_KINDS = {
    "float64": (np.float64, False, False),
    "float32": (np.float32, False, False),
    "tf32": (np.float32, False, True),
    "int8": (np.float32, True, False),
}


def event_seconds(xp: ModuleType, call: Callable[[], Any]) -> float:
    """Seconds of a call between two events of the current stream."""
    start, stop = xp.cuda.Event(), xp.cuda.Event()
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return float(xp.cuda.get_elapsed_time(start, stop)) / 1e3


def limits(xp: ModuleType, size: int, megabytes: int) -> dict[str, float]:
    """Operations or bytes a second by name.

    "float64" to "int8": a square cuBLAS product of that size. "copy …": so many megabytes across
    the bus, from and to pinned memory if nothing else is said, and within the device (bytes read
    and written). The median of five.
    """
    return _products(xp, size) | _copies(xp, megabytes)


def _products(xp: ModuleType, size: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    rates = {}
    for kind, (dtype, quantization, tf32) in _KINDS.items():
        product = product_of(xp, dtype, size, quantization, tf32)
        # Zeros would draw less power and so run at a higher clock than data do.
        host = rng.integers(-99, 99, (2, size, size), np.int8)
        A, B = (xp.asarray(half.astype(product.dtype)) for half in host)
        out = xp.empty((size, size), product.out_dtype)
        rates[kind] = 2 * size**3 / _median(xp, lambda: product.multiply(A, B, out))  # noqa: B023
    return rates


def _copies(xp: ModuleType, megabytes: int) -> dict[str, float]:
    size = megabytes * 2**20
    pageable = np.ones(size, np.uint8)
    pinned = np.frombuffer(xp.cuda.alloc_pinned_memory(size), np.uint8, size)
    pinned[:] = 1
    here, there = xp.zeros(size, np.uint8), xp.zeros(size, np.uint8)
    stream = xp.cuda.get_current_stream()
    copies: dict[str, Callable[[], Any]] = {
        "copy to the device": lambda: here.set(pinned, stream=stream),
        "copy to the device, pageable": lambda: here.set(pageable),
        "copy to the host": lambda: here.get(stream=stream, out=pinned, blocking=False),
    }
    rates = {name: size / _median(xp, copy) for name, copy in copies.items()}

    def within() -> None:
        there[...] = here

    return rates | {"copy within the device": 2 * size / _median(xp, within)}


def _median(xp: ModuleType, call: Callable[[], Any]) -> float:
    call()
    return statistics.median(event_seconds(xp, call) for _ in range(5))
