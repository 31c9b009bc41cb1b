"""Ridge regression for many penalties from one decomposition, and outputs of rows left out.

HᵀH is reduced to Q T Qᵀ with T tridiagonal, after which it is easy to solve for every shift. This
takes a fraction of the time of eigenvalues and eigenvectors, which start from it. LAPACK does it on
the CPU. Device libraries have no such function, so eigenvalues are used there: T is diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal, lapack
from sklearn.exceptions import ConvergenceWarning

from gpurbf.runtime.arrays import library, to_host
from gpurbf.runtime.errors import warn
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.linalg import eigh
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import map_single_threaded_blas, parallel_rows, single_threaded_blas
from gpurbf.solvers.ridge import OwnCenters, left_out
from gpurbf.solvers.ridge.normal_equations import ROUNDING, NormalEquations

kernels = lazy_module("gpurbf.solvers.ridge._path_kernels")

# Rows that are rotated, or multiplied with all weights, at a time.
_ROWS_PER_TASK = 128
# Up to this many reflectors (its NBMAX) LAPACK's dormqr works without blocks. It then overwrites a
# number of each for a while, so threads must not share them.
_MAX_UNBLOCKED = 64
# From this many rows on, BLAS threads help LAPACK: half of its work is a product with a vector for
# each row, after which threads synchronize. Two OpenBLAS threads take half the time of one, but
# below this number they keep spinning for longer than that saves (1,000 centers: a fit took 1.21
# instead of 1.18 of the time with a reduction of our own, up to 1.54).
_MIN_ROWS_FOR_BLAS_THREADS = 2000


class RidgePath:
    """Least squares with each of some penalties, from HᵀH as Q T Qᵀ with T tridiagonal.

    T + λI is solved in O(m) for any λ, so all penalties together take less time than one more
    Cholesky factorisation.

    Parameters
    ----------
    normal : NormalEquations
        The sums, which are overwritten.
    alphas : ndarray of shape (p,)
        Penalties, > 0, as `Ridge` takes them.
    fit_intercept : bool
        Whether there is an intercept, which is not penalised.
    """

    def __init__(self, normal: NormalEquations, alphas: np.ndarray, fit_intercept: bool) -> None:
        with normal.allocator():
            self.equations = equations = normal.equations(fit_intercept)
            with stage("output training", "tridiagonal form"):
                self.form = tridiagonal(equations.A)
                turned = self.form.turn(equations.B.T)
        self.shifts = alphas * equations.scale + self._lacking(alphas.min() * equations.scale)
        # For each penalty the weights (k, m), times Q.
        self.weights = np.stack([self.form.solve(shift, turned) for shift in self.shifts])
        self.intercept_leverage = 1 / float(normal.weight) if fit_intercept else 0.0

    def _lacking(self, least: float) -> float:
        """Shift that makes T positive definite in floating point for all penalties, or 0."""
        lacking = max(0.0, ROUNDING * self.form.norm() - self.form.lowest())
        if lacking > least:
            warn(
                "HᵀH is not positive definite in floating point with the smallest of alphas: "
                f"{lacking / self.equations.scale:.2g} was added to each. Leave out those below, "
                "or use a larger gamma, fewer centers or precision='float64'.",
                ConvergenceWarning,
            )
        return lacking

    def solution(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Output weights for one of the penalties.

        Parameters
        ----------
        i : int
            Number of the penalty.

        Returns
        -------
        W : ndarray of shape (m, k), float64
        intercept : ndarray of shape (k,), float64
        """
        W = np.ascontiguousarray(self.form.back(self.weights[i]).T)
        return W, self.equations.intercept(W)

    @stage("back and evaluate", "leave-one-out")
    def leave_one_out(
        self, H: Any, T: np.ndarray, weights: np.ndarray, own: OwnCenters
    ) -> np.ndarray:
        """Outputs for training rows with each penalty, each row as if it had not been trained on.

        If a row is a center, this center is left out too: new samples are not centers, so the
        outputs without it are like those for new samples.

        Parameters
        ----------
        H : array of shape (N, m), of the library that solved
            The rows as they were added to the sums.
        T : ndarray of shape (N, k)
            Targets that the rows were trained on.
        weights : ndarray of shape (N,)
            Weights of the rows in training, all copies of a row together.
        own : OwnCenters
            Rows that are centers.

        Returns
        -------
        outputs : ndarray of shape (p, N, k), float64

        Notes
        -----
        Let A be the matrix of the system, h the row and e the column with ones at its centers.
        Without the center the output is f - (β / γ) W_e and its leverage α - β² / γ, where α =
        hᵀA⁻¹h + 1/n, β = hᵀA⁻¹e and γ = eᵀA⁻¹e; without the row then (f - ℓt) / (1 - ℓ), ℓ the
        leverage times the weight (Hastie, Tibshirani, Friedman, 2009, eq. 7.64).
        """
        p, k, m = self.weights.shape
        xp = library(H)
        Z = self.form.turn((H - xp.asarray(self.equations.mean)).astype(np.float64, copy=False))
        E = self.form.turn(xp.asarray(own.units.T))

        def outputs_of(V: np.ndarray) -> np.ndarray:
            W, found = self.weights.reshape(p * k, m).T, np.empty((len(V), p * k))
            parts = [slice(i, i + _ROWS_PER_TASK) for i in range(0, len(V), _ROWS_PER_TASK)]
            map_single_threaded_blas([partial(np.matmul, V[i], W, out=found[i]) for i in parts])
            count(operations=2 * V.size * p * k, kind="float64", nbytes=V.nbytes + W.nbytes)
            return found.reshape(len(V), p, k).transpose(1, 0, 2)

        outputs = outputs_of(Z) + self.equations.target_mean
        units = np.zeros(Z.shape)
        units[own.rows] = E
        leverage, cross, at_itself = self.form.forms(self.shifts, Z, units)
        leverage += self.intercept_leverage
        cross = cross[:, own.rows]
        ratio = cross / at_itself[:, own.rows]
        outputs[:, own.rows] -= ratio[..., None] * outputs_of(E)
        leverage[:, own.rows] -= ratio * cross
        return left_out(outputs, weights * leverage, T)


@dataclass
class Tridiagonal:
    """T, given by its ``diagonal`` (m,) and the m - 1 numbers ``beside`` it, and the rotation Q.

    ``turn`` maps rows V (n, m), in the array library of A, to V Q; ``back`` maps rows to V Qᵀ. Both
    return NumPy arrays.
    """

    diagonal: np.ndarray
    beside: np.ndarray
    turn: Callable[[Any], np.ndarray]
    back: Callable[[Any], np.ndarray]

    def lowest(self) -> float:
        """The smallest eigenvalue."""
        scale = 2.0 ** (np.frexp(self.norm())[1] - 1)  # squares of numbers of 1e160 overflow
        scaled = self.diagonal / scale, self.beside[: len(self.diagonal) - 1] / scale
        return scale * float(eigvalsh_tridiagonal(*scaled, "i", (0, 0), check_finite=False)[0])

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

        def task(rows: slice) -> None:
            kernels.bilinear_forms(rows.start, Y, Z, factors, pivots, forms)

        parallel_rows(task, len(Z), kernels.ROWS)
        count(operations=11 * Z.size * len(shifts), kind="float64", nbytes=Y.nbytes + Z.nbytes)
        return forms


def tridiagonal(A: Any) -> Tridiagonal:
    """Reduce a symmetric A (m, m), which is overwritten."""
    m, xp = len(A), library(A)
    if xp is not np or m == 1:
        values, vectors = eigh(A)
        return Tridiagonal(
            to_host(values),
            np.zeros(max(m - 1, 1)),  # LAPACK needs a pointer to something
            lambda V: to_host(V @ vectors),
            lambda V: to_host(xp.asarray(V) @ vectors.T),
        )
    count(operations=4 * m**3 / 3, kind="float64", nbytes=8 * m**3 / 6)
    with single_threaded_blas() if m < _MIN_ROWS_FOR_BLAS_THREADS else nullcontext():
        work = int(lapack.dsytrd_lwork(m, lower=1)[0])
        # A is symmetric: its transpose is the Fortran order that LAPACK works on in place.
        reflected, diagonal, beside, taus, _ = lapack.dsytrd(
            A.T, lower=1, lwork=work, overwrite_a=1
        )
    rotate = partial(_rotated, np.asfortranarray(reflected[1:, :-1]), taus)
    return Tridiagonal(diagonal, beside, partial(rotate, "T"), partial(rotate, "N"))


def _rotated(reflectors: np.ndarray, taus: np.ndarray, trans: str, V: np.ndarray) -> np.ndarray:
    """Rows V (n, m) times Q, or with "N" times Qᵀ, for Q as LAPACK's dsytrd stores it."""
    rotated = np.array(V, np.float64)
    parts = [rotated[i : i + _ROWS_PER_TASK, 1:] for i in range(0, len(rotated), _ROWS_PER_TASK)]

    def apply(part: np.ndarray) -> None:
        C = np.asfortranarray(part.T)
        own = reflectors.copy(order="F") if len(taus) <= _MAX_UNBLOCKED else reflectors
        work = int(lapack.dormqr("L", trans, own, taus, C, -1)[1][0])
        part[:] = lapack.dormqr("L", trans, own, taus, C, work, overwrite_c=1)[0].T

    map_single_threaded_blas([partial(apply, part) for part in parts])
    count(operations=2 * rotated.size * rotated.shape[1], kind="float64", nbytes=2 * rotated.nbytes)
    return rotated
