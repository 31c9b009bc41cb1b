"""A symmetric matrix as Q T Qᵀ with T tridiagonal, after which every shift of it is easy to solve.

It takes a fraction of the time of the eigenvalues and -vectors, which start from it. LAPACK does it
on the CPU; libraries of devices have no such function but the eigenvalues, a T that is diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.linalg import factorizations
from gpurbf.runtime.stages import count
from gpurbf.runtime.threads import map_single_threaded_blas, parallel_for, single_threaded_blas

tridiagonal_kernels = lazy_module("gpurbf.solvers.ridge._tridiagonal_kernels")

# Rows that are rotated, or meet all weights, at a time.
_ROWS = 128
# From so many rows on BLAS's threads help LAPACK: half of its work is a product with a vector for
# each row, after which threads meet.
_THREADS = 2000


@dataclass
class Tridiagonal:
    """T, by its ``diagonal`` (m,) and the m - 1 numbers ``beside`` it, and the rotation Q.

    ``turn`` maps rows V (n, m), of the library that A was of, to V Q and ``back`` to V Qᵀ, NumPy's.
    """

    diagonal: np.ndarray
    beside: np.ndarray
    turn: Callable[[Any], np.ndarray]
    back: Callable[[Any], np.ndarray]

    def lowest(self) -> float:
        """The least eigenvalue."""
        found = scipy.linalg.eigh_tridiagonal(
            self.diagonal,
            self.beside[: len(self.diagonal) - 1],
            eigvals_only=True,
            select="i",
            select_range=(0, 0),
            check_finite=False,
        )
        return float(found[0])

    def norm(self) -> float:
        """An upper bound of the eigenvalues' magnitudes."""
        return float(np.abs(self.diagonal).max() + 2 * np.abs(self.beside).max())

    def solve(self, shift: float, B: np.ndarray) -> np.ndarray:
        """Rows B (T + shift I)⁻¹, shape (k, m); T + shift I must be positive definite."""
        return lapack.dptsv(self.diagonal + shift, self.beside, B.T)[2].T

    def forms(self, shifts: np.ndarray, Y: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """y·My, y·Mz and z·Mz for rows y, z of Y and Z (n, m), each with M = (T + shift I)⁻¹.

        The shape is (3, shifts, n).
        """

        factored = [lapack.dpttrf(self.diagonal + shift, self.beside)[:2] for shift in shifts]
        pivots, factors = (np.array(part) for part in zip(*factored, strict=True))
        forms = np.empty((3, len(shifts), len(Z)))

        def task(i: int) -> None:
            tridiagonal_kernels.bilinear_forms(
                i * tridiagonal_kernels.ROWS, Y, Z, factors, pivots, forms
            )

        parallel_for(task, -(-len(Z) // tridiagonal_kernels.ROWS))
        count(operations=11 * Z.size * len(shifts), kind="float64", nbytes=Y.nbytes + Z.nbytes)
        return forms


def tridiagonal(xp: ModuleType, A: Any) -> Tridiagonal:
    """The form of a symmetric A (m, m) of that library, which is overwritten."""
    m = len(A)
    if xp is not np or m == 1:
        values, vectors = factorizations(xp).eigh(A)
        return Tridiagonal(
            to_host(values),
            np.zeros(max(m - 1, 1)),  # LAPACK wants something to point at
            lambda V: to_host(V @ vectors),
            lambda V: to_host(xp.asarray(V) @ vectors.T),
        )
    count(operations=4 * m**3 / 3, kind="float64", nbytes=8 * m**3 / 6)
    with single_threaded_blas() if m < _THREADS else nullcontext():
        work = int(lapack.dsytrd_lwork(m, lower=1)[0])
        # A is symmetric: its transpose is the Fortran order that LAPACK works on in place.
        reflected, diagonal, beside, taus, _ = lapack.dsytrd(
            A.T, lower=1, lwork=work, overwrite_a=1
        )
    rotate = partial(_rotated, np.asfortranarray(reflected[1:, :-1]), taus)
    return Tridiagonal(diagonal, beside, partial(rotate, "T"), partial(rotate, "N"))


def _rotated(reflectors: np.ndarray, taus: np.ndarray, trans: str, V: np.ndarray) -> np.ndarray:
    """Rows V (n, m) times Q, or with "N" times Qᵀ, of Q as LAPACK's dsytrd leaves it."""
    rotated = np.array(V, np.float64)
    parts = [rotated[i : i + _ROWS, 1:] for i in range(0, len(rotated), _ROWS)]

    def apply(part: np.ndarray) -> None:
        C = np.asfortranarray(part.T)
        work = int(lapack.dormqr("L", trans, reflectors, taus, C, -1)[1][0])
        part[:] = lapack.dormqr("L", trans, reflectors, taus, C, work, overwrite_c=1)[0].T

    map_single_threaded_blas([partial(apply, part) for part in parts])
    count(operations=2 * rotated.size * rotated.shape[1], kind="float64", nbytes=2 * rotated.nbytes)
    return rotated


def products(Z: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Rows Z (n, m) times W (m, k)."""
    found = np.empty((len(Z), W.shape[1]))
    parts = [slice(i, i + _ROWS) for i in range(0, len(Z), _ROWS)]
    map_single_threaded_blas([partial(np.matmul, Z[rows], W, out=found[rows]) for rows in parts])
    count(operations=2 * Z.size * W.shape[1], kind="float64", nbytes=Z.nbytes + W.nbytes)
    return found
