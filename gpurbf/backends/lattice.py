"""The integer lattice: which data are small integers in disguise, and their 8-bit codes."""

from __future__ import annotations

import numpy as np

from gpurbf.backends import Lattice
from gpurbf.backends.threads import parallel_for

# Pixels come as integers, or divided by 255, by 256 or by a smaller power of two.
DENOMINATORS = (1.0, 255.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_SAMPLE = 16384
_ROWS = 256


def encode(X: np.ndarray, lattice: Lattice) -> np.ndarray | None:
    """The uint8 codes of X (N, n), or None if one value is off the lattice.

    On it means equal to the code's value rounded to X's dtype: ``k / q`` or ``k * (1 / q)``, the
    two ways in which people rescale pixels.
    """
    if X.dtype == np.uint8:
        return X if lattice == Lattice(1.0, 0) else None
    if X.dtype == np.int8:
        return X.view(np.uint8) ^ np.uint8(128) if lattice == Lattice(1.0, 128) else None
    from gpurbf.kernels.lattice import encode_rows

    if X.dtype not in (np.float32, np.float64):
        X = X.astype(np.float64)
    codes = np.empty(X.shape, np.uint8)
    n_tiles = -(-len(X) // _ROWS)
    good = np.zeros(n_tiles, bool)
    q, inverse = X.dtype.type(lattice.denominator), X.dtype.type(1 / lattice.denominator)

    def tile(i: int) -> None:
        # Once one tile is off, the others need no look.
        if i == 0 or good[0]:
            rows = slice(i * _ROWS, (i + 1) * _ROWS)
            good[i] = encode_rows(X[rows], q, inverse, lattice.zero, codes[rows])

    if n_tiles:
        tile(0)
        parallel_for(lambda i: tile(i + 1), n_tiles - 1)
    return codes if good.all() else None


def candidates(X: np.ndarray) -> list[Lattice]:
    """The lattices that a sample of X is on, coarsest first; cheap, and no proof for all of X."""
    if X.dtype == np.uint8:
        return [Lattice(1.0, 0)]
    if X.dtype == np.int8:
        return [Lattice(1.0, 128)]
    rows = max(1, _SAMPLE // max(1, X.shape[1]))
    sample = np.ascontiguousarray(X[:: max(1, len(X) // rows)][:rows])
    return [
        lattice
        for q in DENOMINATORS
        for lattice in (Lattice(q, 0), Lattice(q, 128))
        if encode(sample, lattice) is not None
    ]
