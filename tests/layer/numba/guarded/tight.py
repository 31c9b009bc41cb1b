"""`pytest -p tight`: packed buffers end where their memory does, and not up to 64 bytes before it.

With guard.c in LD_PRELOAD, whose addresses are multiples of 16: 48 bytes more hold one of 64.
"""

import ctypes
import math

import numpy as np

from gpurbf.layer.backends.numba import packing


def aligned(shape, dtype):
    """As `packing.aligned`."""
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    n_bytes = size * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + 48, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


packing.aligned = aligned


def pytest_terminal_summary(terminalreporter):
    """Say how many pieces of memory had a guard."""
    terminalreporter.write_line(f"guarded {ctypes.CDLL(None).guarded_pieces()}")
