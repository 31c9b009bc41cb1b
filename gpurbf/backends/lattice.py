"""The integer lattice: which data are small integers in disguise, and their 8-bit codes."""

from __future__ import annotations

import numpy as np

from gpurbf.backends import Lattice
from gpurbf.backends.threads import parallel_for

# Pixels come as integers, or divided by 255, by 256 or by a smaller power of two.
DENOMINATORS = (1.0, 255.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_LATTICES = [Lattice(q, zero) for q in DENOMINATORS for zero in (0, 128)]
# What a multiple of a lattice's step may be off by, and more than rounding does to the largest.
_NEAR = 1e-3
_SAMPLE = 16384
_ROWS = 256


def encode(X: np.ndarray, lattice: Lattice) -> tuple[np.ndarray, np.ndarray]:
    """The uint8 codes of X (N, n), and which rows (N,) are off the lattice.

    On it means that each value of the row is its code's value, ``k / q`` or ``k * (1 / q)``, the
    two ways in which people rescale pixels, rounded to X's dtype; or all are rounded to float32
    and X has become float64 since. The codes of a row that is off it mean nothing.
    """
    if X.dtype in (np.uint8, np.int8):
        zero = 0 if X.dtype == np.uint8 else 128
        codes = X if zero == 0 else X.view(np.uint8) ^ np.uint8(128)
        return codes, np.full(len(X), lattice != Lattice(1.0, zero))
    from gpurbf.kernels.lattice import encode_rows

    if X.dtype not in (np.float32, np.float64):
        X = X.astype(np.float64)
    codes, off = np.empty(X.shape, np.uint8), np.zeros(len(X), bool)
    q, inverse = X.dtype.type(lattice.denominator), X.dtype.type(1 / lattice.denominator)

    def tile(i: int) -> None:
        part = slice(i * _ROWS, (i + 1) * _ROWS)
        rows = np.ascontiguousarray(X[part]).view()
        rows.flags.writeable = False  # of any X the one type that there is a kernel for
        encode_rows(rows, q, inverse, X.dtype.type(lattice.zero), codes[part], off[part])

    if len(X) <= _ROWS:
        tile(0)
    else:
        parallel_for(tile, -(-len(X) // _ROWS))
    return codes, off


def sample_of(X: np.ndarray) -> np.ndarray:
    """Some rows of X (N, n), evenly spaced: enough to tell which lattices are worth a look."""
    rows = max(1, _SAMPLE // max(1, X.shape[1]))
    return np.ascontiguousarray(X[:: max(1, len(X) // rows)][:rows])


def candidates(X: np.ndarray) -> list[Lattice]:
    """The lattices that a sample of X is on, coarsest first; cheap, and no proof for all of X."""
    if X.dtype == np.uint8:
        return [Lattice(1.0, 0)]
    if X.dtype == np.int8:
        return [Lattice(1.0, 128)]
    sample = sample_of(X)
    near = _near(sample[0]) if len(sample) else np.ones(len(DENOMINATORS), bool)
    likely = (lattice for lattice in _LATTICES if near[DENOMINATORS.index(lattice.denominator)])
    return [lattice for lattice in likely if not encode(sample, lattice)[1].any()]


def _near(row: np.ndarray) -> np.ndarray:
    """Of which denominators a row may be multiples: all but those that a look is enough for."""
    with np.errstate(over="ignore", invalid="ignore"):
        multiples = np.multiply.outer(DENOMINATORS, row.astype(np.float64))
        multiples -= np.rint(multiples)
        near: np.ndarray = np.all(np.abs(multiples) <= _NEAR, axis=1)
    return near
