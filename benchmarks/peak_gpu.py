"""A GPU's limits: matrix products and copies by CUDA events, and what its units could do."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.layer.backends.cuda.cupy_ import products

# Kinds of product that cuBLAS is asked for: dtype of the layer, whether quantized, whether TF32.
_KINDS = {
    "float64": (np.float64, False, False),
    "float32": (np.float32, False, False),
    "tf32": (np.float32, False, True),
    "int8": (np.float32, True, False),
}
# float32 units of a multiprocessor by compute capability; all others have 128.
_LANES = {(7, 5): 64, (8, 0): 64}


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

    "float64" to "int8": a square cuBLAS product of that size. "float32 units": a fused multiply-add
    (two operations) of every unit in every cycle of the highest clock; "…, differences": two
    instructions for each difference that a Manhattan distance sums. "copy …": so many megabytes
    across the bus, from and to pinned memory if nothing else is said, and within the device (bytes
    read and written). What is timed is the median of five.
    """
    return _products(xp, size) | _units(xp) | _copies(xp, megabytes)


def _products(xp: ModuleType, size: int) -> dict[str, float]:
    choose, rng = products(xp), np.random.default_rng(0)
    rates = {}
    for kind, (dtype, quantization, tf32) in _KINDS.items():
        product = choose(np.dtype(dtype), size, quantization, tf32)
        # Zeros would draw less power and so run at a higher clock than data do.
        host = rng.integers(-99, 99, (2, size, size), np.int8)
        A, B = (xp.asarray(half.astype(product.x_dtype)) for half in host)
        out = xp.empty((size, size), product.out_dtype)
        rates[kind] = 2 * size**3 / _median(xp, lambda: product.multiply(A, B, out))  # noqa: B023
    return rates


def int8_products(xp: ModuleType, rows: Sequence[int], inputs: Sequence[int]) -> None:
    """The 8-bit product as the layer calls it, of these numbers of centers; raise if wrong."""
    rng = np.random.default_rng(0)
    for n in inputs:
        product = products(xp)(np.dtype(np.float32), n, True)
        for m in rows:
            A, B = (rng.integers(-128, 128, (size, n)).astype(np.int8) for size in (33, m))
            wide = -(-n // product.group) * product.group
            tall = -(-m // product.group) * product.group
            a = np.pad(A, ((0, 0), (0, wide - n)))
            b = np.pad(B, ((0, tall - m), (0, wide - n)))
            out = xp.empty((len(a), tall), product.out_dtype)
            product.multiply(xp.asarray(a), xp.asarray(b), out)
            if not np.array_equal(out.get()[:, :m], A.astype(np.int32) @ B.T.astype(np.int32)):
                raise AssertionError(f"33 × {m} × {n}: cuBLAS's 8-bit product is not exact")


def _units(xp: ModuleType) -> dict[str, float]:
    attributes = xp.cuda.Device().attributes
    capability = attributes["ComputeCapabilityMajor"], attributes["ComputeCapabilityMinor"]
    lanes = attributes["MultiProcessorCount"] * _LANES.get(capability, 128)
    instructions = 1e3 * attributes["ClockRate"] * lanes
    return {
        "float32 units": 2 * instructions,
        "float32 units, differences": instructions / 2,
    }


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
