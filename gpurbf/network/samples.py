"""One value for data: samples as the layers take them, looked at once for an integer lattice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf._stages import count, staged
from gpurbf.backends import Lattice
from gpurbf.backends.arrays import is_resident
from gpurbf.backends.lattice import candidates, encode, sample_of

__all__ = ["FORCED", "Samples", "by_row", "lattices_of", "look", "shared_lattices", "stays_sparse"]

# Precisions that look for no integers in the data.
FORCED = ("float32", "tf32", "float64")
# Rows of CSR data that are made dense at a time, and entries that tell which lattices to try.
_ROWS, _ENTRIES = 1024, 1 << 20
# Dense copies up to this size are made without asking what they gain.
_SMALL = 64 << 20


@dataclass(frozen=True)
class Samples:
    """N samples of n inputs: codes on a lattice, or real numbers.

    ``values`` (N, n) are uint8 codes where there is a lattice, else numbers: dense, or CSR where
    dense ones would take too much memory. ``dtype``, float32 or float64, is that of the numbers
    that codes stand for.
    """

    values: Any
    lattice: Lattice | None
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(N, n)."""
        return self.values.shape

    def __len__(self) -> int:
        return self.values.shape[0]

    def __getitem__(self, rows: Any) -> Samples:
        return replace(self, values=self.values[rows])

    def numbers(self) -> Any:
        """The samples as numbers, whatever they are kept as."""
        if self.lattice is None:
            return self.values
        codes = self.values.astype(self.dtype)
        return (codes - self.dtype.type(self.lattice.zero)) / self.dtype.type(
            self.lattice.denominator
        )


def _of(values: Any, lattice: Lattice | None, X: Any) -> Samples:
    return Samples(values, lattice, np.dtype(np.float64 if X.dtype == np.float64 else np.float32))


@staged("prepare", "lattice")
def look(X: Any, precision: str = "auto", lattices: Sequence[Lattice] | None = None) -> Samples:
    """Samples X (N, n), dense or CSR: codes if all of them are on one lattice, else numbers.

    Parameters
    ----------
    X : ndarray or CSR
    precision : str, default="auto"
        A forced arithmetic leaves numbers as they are.
    lattices : sequence of Lattice, optional
        Those to try; by default all that a part of the samples is on.
    """
    sparse = sp.issparse(X)
    if precision not in FORCED and 0 not in X.shape and not is_resident(X):
        if lattices is None:
            lattices = candidates(_some(X))
        for lattice in lattices:
            codes = _encode_sparse(X, lattice) if sparse else _encode_all(X, lattice)
            if codes is not None:
                return _of(codes, lattice, X)
    return _of(X.toarray() if sparse and not stays_sparse(X) else X, None, X)


def _encode_all(X: np.ndarray, lattice: Lattice) -> np.ndarray | None:
    codes, off = encode(X, lattice)
    count(nbytes=0 if codes is X else X.nbytes + codes.nbytes)
    return None if off.any() else codes


def _encode_sparse(X: Any, lattice: Lattice) -> np.ndarray | None:
    """Dense codes of a CSR matrix if they take no more memory than twice the matrix does."""
    if X.shape[0] * X.shape[1] > 2 * (X.data.nbytes + X.indices.nbytes):
        return None
    codes = np.empty(X.shape, np.uint8)
    for start in range(0, X.shape[0], _ROWS):
        codes[start : start + _ROWS], off = encode(X[start : start + _ROWS].toarray(), lattice)
        if off.any():
            return None
    return codes


@staged("prepare", "lattice")
def by_row(X: np.ndarray, lattice: Lattice) -> Iterator[tuple[slice | np.ndarray, Samples]]:
    """Dense rows X on the lattice as codes and those off it as they are, each with their places.

    Which of the two a row is depends on that row alone.
    """
    codes, off = encode(X, lattice)
    count(nbytes=0 if codes is X else X.nbytes + codes.nbytes)
    if not off.any():
        return iter([(slice(0, len(X)), _of(codes, lattice, X))])
    parts = []
    if not off.all():
        on = np.flatnonzero(~off)
        parts.append((on, _of(codes[on], lattice, X)))
    rows = np.flatnonzero(off)
    return iter([*parts, (rows, _of(X if off.all() else X[rows], None, X))])


def lattices_of(X: Any, precision: str) -> tuple[Lattice, ...] | None:
    """The lattices that a sample of X is on, coarsest first; None where nobody is to look."""
    if precision in FORCED:
        return None
    if 0 in X.shape or is_resident(X):
        return ()
    return tuple(candidates(_some(X)))


def _some(X: Any) -> np.ndarray:
    """Enough dense rows of X to tell which lattices are worth a look."""
    return X[: max(1, _ENTRIES // X.shape[1])].toarray() if sp.issparse(X) else X


@staged("prepare", "lattice")
def shared_lattices(C: Any, X: Any, precision: str) -> list[Lattice]:
    """The lattice that all centers C (m, n) are on, and as many as possible of some samples X.

    Empty if there is none, or if none of those samples is on it: looking would gain nothing.
    """
    if precision in FORCED or 0 in C.shape or 0 in X.shape or is_resident(X):
        return []
    if C.dtype == X.dtype == np.uint8:
        return candidates(C)
    sample = sample_of(_some(X))
    on = {lattice: int((~encode(sample, lattice)[1]).sum()) for lattice in candidates(_some(C))}
    for lattice in sorted(on, key=on.__getitem__, reverse=True):
        if on[lattice]:
            C = C.toarray() if sp.issparse(C) else C
            if not encode(C, lattice)[1].any():
                return [lattice]
    return []


def stays_sparse(X: Any) -> bool:
    """Whether X is CSR and would take much memory, more than twice its own, as dense float64."""
    if not sp.issparse(X):
        return False
    return 8 * X.shape[0] * X.shape[1] > max(_SMALL, 2 * (X.data.nbytes + X.indices.nbytes))
