"""A symmetric matrix as Q T Qᵀ with T tridiagonal, after which every shift of it is easy to solve.

It takes a fraction of the time of the eigenvalues and -vectors, which start from it. A kernel of
ours does it on the CPU, for large matrices LAPACK; libraries of devices have no such function but
the eigenvalues, a T that is diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.linalg import factorizations
from gpurbf.runtime.stages import count
from gpurbf.runtime.threads import map_single_threaded_blas, parallel_for

gram_kernels = lazy_module("gpurbf.layer.backends.numba.gram_kernels")
microkernels = lazy_module("gpurbf.layer.backends.numba.microkernels")
packing = lazy_module("gpurbf.layer.backends.numba.packing")
householder_kernels = lazy_module("gpurbf.solvers.ridge._householder_kernels")
tridiagonal_kernels = lazy_module("gpurbf.solvers.ridge._tridiagonal_kernels")


# Reflectors that are applied at once, and rows that meet all weights while these are in cache.
_BLOCK, _ROWS = 64, 128
# Smaller matrices are reduced by our kernel. Half of it is a product with a vector for each row,
# after which BLAS's threads meet: they have enough to do between only for so many rows.
_OWN = 2000
# The most powers of two by which a matrix is scaled.
_POWERS = 1000


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
    diagonal, beside, taus, reflectors = (_reduced if m < _OWN else _by_lapack)(A)
    starts = range(0, m - 1, _BLOCK)
    blocks = map_single_threaded_blas(
        [partial(_block, taus, i, partial(reflectors, i)) for i in starts]
    )
    return Tridiagonal(
        diagonal,
        beside,
        lambda V: _reflected(V, [block for block, _ in blocks]),
        lambda V: _reflected(V, [transposed for _, transposed in reversed(blocks)]),
    )


# The first of the columns that reflectors are on, and L and R of I - L Rᵀ in panels.
_Block = tuple[int, np.ndarray, np.ndarray]
# T, its reflectors' τ, and what gives the vectors of some of these from a number on, as columns.
_Form = tuple[np.ndarray, np.ndarray, np.ndarray, Callable[[int, int], np.ndarray]]


def _reduced(A: np.ndarray) -> _Form:
    """By our kernel, in a copy whose magnitude is about 1, so that squares are what they are."""

    m, n = len(A), gram_kernels.padded_panels(len(A))
    largest = float(A.diagonal().max())
    power = np.clip(np.frexp(largest)[1], -_POWERS, _POWERS)
    room = packing.aligned((n * microkernels.LANES,) * 2, np.float64)
    np.multiply(A, 2.0**-power, out=room[:m, :m])
    room[m:], room[:, m:] = 0, 0
    kernel = cpu_kernel.micro_kernel("gram", np.float64)
    state = packing.aligned(householder_kernels.STATE, np.int64)
    pending, turned = packing.aligned(
        (2, n, 2 * householder_kernels.PANEL, microkernels.LANES), np.float64
    )
    x, Y = (packing.aligned((k, len(room)), np.float64) for k in (1, householder_kernels.PARTS))
    state[:], x[:] = 0, 0
    shared = householder_kernels.Shared(room, m, kernel, state, pending, turned, x[0], Y)
    diagonal, beside, taus = np.empty(m), np.empty(m - 1), np.empty(m - 1)

    def task(i: int) -> None:
        if i == 0:
            householder_kernels.lead(shared, diagonal, beside, taus)
        else:
            householder_kernels.help_out(shared)

    parallel_for(task, 2)
    scale = 2.0**power
    return diagonal * scale, beside * scale, taus, lambda i, k: room[i : i + k, i + 1 : m].T


def _by_lapack(A: np.ndarray) -> _Form:
    work = int(lapack.dsytrd_lwork(len(A), lower=1)[0])
    # A is symmetric, so its transpose is the Fortran order that LAPACK works on in place.
    reflected, diagonal, beside, taus, _ = lapack.dsytrd(A.T, lower=1, lwork=work, overwrite_a=1)

    def reflectors(i: int, k: int) -> np.ndarray:
        Y = np.tril(reflected[i + 1 :, i : i + k], -1)
        Y[np.arange(k), np.arange(k)] = 1
        Y[:, taus[i : i + k] == 0] = 0  # a reflector that is none
        return Y

    return diagonal, beside, taus, reflectors


def _block(
    taus: np.ndarray, i: int, reflectors: Callable[[int], np.ndarray]
) -> tuple[_Block, _Block]:
    """Reflectors i, i + 1, … in one, I - Y S Yᵀ on all columns from i + 1 on, and its transpose.

    S⁻¹ is the upper triangle of YᵀY with 1 / τ as its diagonal (Schreiber and Van Loan, 1989).
    """
    t = taus[i : i + _BLOCK]
    Y = reflectors(len(t))
    upper = np.triu(Y.T @ Y, 1)
    np.fill_diagonal(upper, 1 / np.where(t == 0, 1, t))
    S = scipy.linalg.solve_triangular(upper, np.eye(len(t)), check_finite=False)
    YS = Y @ S
    return (i + 1, _columns(YS), _rows(Y)), (i + 1, _columns(Y), _rows(YS))


def _columns(Y: np.ndarray) -> np.ndarray:
    """Columns of Y (m, k) in panels (·, m, LANES), with zeros beyond, as many as `_BLOCK`."""

    panels = np.zeros((_BLOCK // microkernels.LANES, len(Y), microkernels.LANES))
    for i in range(0, Y.shape[1], microkernels.LANES):
        part = Y[:, i : i + microkernels.LANES]
        panels[i // microkernels.LANES, :, : part.shape[1]] = part
    return panels


def _rows(Y: np.ndarray) -> np.ndarray:
    """Rows of Y (m, k) in panels (·, _BLOCK, LANES), with zeros beyond."""

    m, k = Y.shape
    panels = np.zeros((-(-m // microkernels.LANES), _BLOCK, microkernels.LANES))
    whole = m // microkernels.LANES
    panels[:whole, :k] = (
        Y[: whole * microkernels.LANES].reshape(whole, microkernels.LANES, k).swapaxes(1, 2)
    )
    if rest := m % microkernels.LANES:
        panels[whole, :k, :rest] = Y[-rest:].T
    return panels


def _reflected(V: np.ndarray, blocks: list[_Block]) -> np.ndarray:
    """Rows V (n, m) times I - L Rᵀ for the (i, L, R) of each block, in their order."""

    n, m = V.shape
    turned, kernel = np.empty((n, m)), cpu_kernel.micro_kernel("gram", np.float64)

    def task(i: int) -> None:
        rows = slice(i * microkernels.LANES, min((i + 1) * microkernels.LANES, n))
        panel = packing.aligned((m + microkernels.LANES, microkernels.LANES), np.float64)
        panel[:m, : rows.stop - rows.start], panel[:m, rows.stop - rows.start :] = V[rows].T, 0
        panel[m:] = 0
        for first, left, right in blocks:
            householder_kernels.reflect(panel, first, left, right, kernel)
        turned[rows] = panel[:m, : rows.stop - rows.start].T

    parallel_for(task, -(-n // microkernels.LANES))
    count(operations=2 * turned.size * m, kind="float64", nbytes=2 * turned.nbytes)
    return turned


def products(Z: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Rows Z (n, m) times W (m, k)."""
    found = np.empty((len(Z), W.shape[1]))
    parts = [slice(i, i + _ROWS) for i in range(0, len(Z), _ROWS)]
    map_single_threaded_blas([partial(np.matmul, Z[rows], W, out=found[rows]) for rows in parts])
    count(operations=2 * Z.size * W.shape[1], kind="float64", nbytes=Z.nbytes + W.nbytes)
    return found
