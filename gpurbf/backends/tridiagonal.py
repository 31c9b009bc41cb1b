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

from gpurbf._stages import count
from gpurbf.backends.arrays import factorizations, to_host
from gpurbf.backends.threads import alone, blas_alone, parallel_for

__all__ = ["Tridiagonal", "products", "tridiagonal"]

# Reflectors that are applied at once, and rows that they are applied to while these are in cache.
_BLOCK, _ROWS = 64, 128
# Half of the reduction is a product with a vector for each row, after which BLAS's threads meet:
# they have enough to do between for so many rows.
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
        from gpurbf.kernels import tridiagonal as kernels

        factored = [lapack.dpttrf(self.diagonal + shift, self.beside)[:2] for shift in shifts]
        pivots, factors = (np.array(part) for part in zip(*factored, strict=True))
        forms = np.empty((3, len(shifts), len(Z)))

        def task(i: int) -> None:
            kernels.bilinear_forms(i * kernels.ROWS, Y, Z, factors, pivots, forms)

        parallel_for(task, -(-len(Z) // kernels.ROWS))
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
    work = int(lapack.dsytrd_lwork(m, lower=1)[0])
    # A is symmetric, so its transpose is the Fortran order that LAPACK works on in place.
    with blas_alone() if m < _THREADS else nullcontext():
        reflected, diagonal, beside, tau, _ = lapack.dsytrd(A.T, lower=1, lwork=work, overwrite_a=1)
    blocks = alone([partial(_block, reflected, tau, i) for i in range(0, m - 1, _BLOCK)])
    return Tridiagonal(
        diagonal,
        beside,
        lambda V: _reflected(V, blocks),
        lambda V: _reflected(V, [(i, Y, YS) for i, YS, Y in reversed(blocks)]),
    )


def _block(reflected: np.ndarray, tau: np.ndarray, i: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Reflectors i, i + 1, … in one: I - Y S Yᵀ on all columns from i + 1 on, as YS and Y.

    S⁻¹ is the upper triangle of YᵀY with 1 / tau as its diagonal (Schreiber and Van Loan, 1989).
    """
    t = tau[i : i + _BLOCK]
    Y = np.tril(reflected[i + 1 :, i : i + len(t)], -1)
    Y[np.arange(len(t)), np.arange(len(t))] = 1
    Y[:, t == 0] = 0  # a reflector that is none
    upper = np.triu(Y.T @ Y, 1)
    np.fill_diagonal(upper, 1 / np.where(t == 0, 1, t))
    S = scipy.linalg.solve_triangular(upper, np.eye(len(t)), check_finite=False)
    return i + 1, Y @ S, Y


def _reflected(V: np.ndarray, blocks: list[tuple[int, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Rows V (n, m) times I - L Rᵀ for the (i, L, R) of each block, in their order."""
    turned = np.array(V, np.float64, order="C")

    def work(rows: np.ndarray) -> None:
        for i, left, right in blocks:
            rows[:, i:] -= (rows[:, i:] @ left) @ right.T

    alone([partial(work, turned[i : i + _ROWS]) for i in range(0, len(turned), _ROWS)])
    count(operations=2 * turned.size * turned.shape[1], kind="float64", nbytes=2 * turned.nbytes)
    return turned


def products(Z: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Rows Z (n, m) times W (m, k)."""
    found = np.empty((len(Z), W.shape[1]))
    parts = [slice(i, i + _ROWS) for i in range(0, len(Z), _ROWS)]
    alone([partial(np.matmul, Z[rows], W, out=found[rows]) for rows in parts])
    count(operations=2 * Z.size * W.shape[1], kind="float64", nbytes=Z.nbytes + W.nbytes)
    return found
