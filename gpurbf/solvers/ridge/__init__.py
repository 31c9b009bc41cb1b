"""Ridge regression in closed form, from sums over tiles of H.

__init__.py          `Ridge`, its solution and outputs of rows left out
normal_equations.py  the sums, fed batch by batch;  fixed_point.py  the grid on which they are exact
path.py              many penalties at once
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from gpurbf.data.hashes import finder, row_hashes
from gpurbf.layer import Layer
from gpurbf.runtime.arrays import library, to_host
from gpurbf.runtime.checks import check_flag, check_number
from gpurbf.runtime.errors import warn
from gpurbf.runtime.linalg import cholesky, eigh, solve_triangular
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import map_single_threaded_blas, single_threaded_blas
from gpurbf.solvers.ridge.normal_equations import ROUNDING, NormalEquations

# Number of retries, each with a hundred times larger ridge, before eigenvalues are used.
_N_RETRIES = 2
# Rows that a thread leaves out at a time.
_ROWS_LEFT_OUT = 200
# Minimum of 1 - leverage: it is 0 for a row that alone determines its outputs.
_MIN_LEFT = 1e-9


class Ridge(BaseEstimator):
    """Least squares with a penalty on the weights, in closed form.

    Parameters
    ----------
    alpha : float, default=1e-6
        Penalty, > 0, relative to the mean diagonal of HᵀH (of the centred H if there is an
        intercept).
    fit_intercept : bool, default=True
        Whether the outputs have an intercept, which is not penalised.
    """

    needs = "sums"

    def __init__(self, alpha: float = 1e-6, *, fit_intercept: bool = True) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept

    def check(self) -> None:
        """Raise for a bad parameter."""
        check_number("alpha", self.alpha, numbers.Real, 0, above=True)
        check_flag("fit_intercept", self.fit_intercept)

    @stage("output training", "sums")
    def solve(self, normal: NormalEquations, *, keep: bool = False) -> RidgeSolution:
        """Minimise Σ wᵢ ‖tᵢ - hᵢ W - b‖² + λ ‖W‖².

        λ is alpha times the mean diagonal of HᵀH, of the centred H if there is an intercept:
        scaling the weights or the activations changes nothing.

        Parameters
        ----------
        normal : NormalEquations
        keep : bool, default=False
            Whether the sums are needed again; otherwise HᵀH is overwritten.

        Returns
        -------
        solution : RidgeSolution

        Raises
        ------
        FloatingPointError
            If the sums are not finite.

        Warns
        -----
        ConvergenceWarning
            If the matrix was not positive definite in floating point; the warning says what was
            done.
        """
        with normal.allocator():
            equations = normal.equations(self.fit_intercept, keep=keep)
            ridge = float(self.alpha) * equations.scale
            W, whiten, definite = _solve(equations.A, equations.B, ridge)
            W = to_host(W)
        own = 1 / float(normal.weight) if self.fit_intercept else 0.0
        return RidgeSolution(W, equations.intercept(W), equations.mean, own, whiten, definite)


class OwnCenters(NamedTuple):
    """Rows that are centers themselves: their places, and for each a column, 1 at equal centers.

    Equal centers are left out together: they share one weight, and if the penalty is small, the
    inverse of HᵀH has no correct digits for one of them alone.
    """

    rows: np.ndarray
    units: np.ndarray

    @classmethod
    def of(cls, layer: Layer, numbers: np.ndarray) -> OwnCenters:
        """From the number of the first center equal to each row, -1: none."""
        hashes = row_hashes(layer.sparse_centers, 0)
        rows, equal = np.flatnonzero(numbers >= 0), finder(hashes)(hashes)
        return cls(rows, (equal[:, None] == numbers[rows]).astype(np.float64))

    def within(self, part: slice) -> OwnCenters:
        """Those of the rows in ``part``, with places from its start."""
        some = (part.start <= self.rows) & (self.rows < part.stop)
        return OwnCenters(self.rows[some] - part.start, self.units[:, some])


@dataclass
class RidgeSolution:
    """Output weights and intercept, and the whitening that leave-one-out needs.

    Attributes
    ----------
    W : ndarray of shape (m, k), float64
    intercept : ndarray of shape (k,), float64
    mean : ndarray of shape (m,), float64
        Subtracted from H; zero without an intercept.
    intercept_leverage : float
        The contribution of the intercept to the leverage of a row of weight 1.
    whiten : callable
        Maps V (m, N), an array of the library that solved, to L⁻¹ V, where L Lᵀ is the matrix of
        the system.
    definite : bool
        Whether the matrix was positive definite in floating point; otherwise the penalty is a
        larger one.
    """

    W: np.ndarray
    intercept: np.ndarray
    mean: np.ndarray
    intercept_leverage: float
    whiten: Callable[[Any], Any]
    definite: bool = True

    @stage("back and evaluate", "leave-one-out")
    def leave_one_out(
        self, H: Any, T: np.ndarray, weights: np.ndarray, own: OwnCenters | None = None
    ) -> np.ndarray:
        """Outputs for training rows, each as if it had not been trained on.

        The closed form of ridge regression (Hastie, Tibshirani, Friedman, 2009, eq. 7.64). If a row
        is a center, this center is left out too, as in `RidgePath.leave_one_out`.

        Parameters
        ----------
        H : array of shape (N, m), of the library that solved
            The rows as they were added to the sums.
        T : ndarray of shape (N, k)
            Targets that the rows were trained on.
        weights : ndarray of shape (N,)
            Weights of the rows in training, all copies of a row together.
        own : OwnCenters, optional
            Rows that are centers.

        Returns
        -------
        outputs : ndarray of shape (N, k), float64
        """
        n, own = len(H), own or OwnCenters(np.empty(0, np.intp), np.empty((len(self.W), 0)))
        step = _ROWS_LEFT_OUT if library(H) is np else max(1, n)
        parts = [slice(i, min(i + step, n)) for i in range(0, max(1, n), step)]
        works = [partial(self._left_out, H[p], T[p], weights[p], own.within(p)) for p in parts]
        return np.concatenate(map_single_threaded_blas(works))

    def _left_out(self, H: Any, T: np.ndarray, weights: np.ndarray, own: OwnCenters) -> np.ndarray:
        """See `leave_one_out`; for rows that are evaluated together."""
        xp = library(H)
        outputs = to_host(H @ xp.asarray(self.W)) + self.intercept
        rows = (H - xp.asarray(self.mean)).astype(np.float64, copy=False)
        # Few vectors alone would take as long as many: all of L is read.
        half = self.whiten(xp.concatenate([rows, xp.asarray(own.units.T)]).T)
        m = len(half)
        count(operations=half.size * m, kind="float64", nbytes=half.nbytes + 8 * m * m)
        half, at_center = half[:, : len(H)], half[:, len(H) :]
        leverage = to_host((half * half).sum(axis=0)) + self.intercept_leverage
        cross = to_host((half[:, xp.asarray(own.rows)] * at_center).sum(axis=0))
        ratio = cross / to_host((at_center * at_center).sum(axis=0))
        outputs[own.rows] -= ratio[:, None] * (own.units.T @ self.W)
        leverage[own.rows] -= ratio * cross
        return left_out(outputs, weights * leverage, T)


def left_out(outputs: np.ndarray, leverage: np.ndarray, T: np.ndarray) -> np.ndarray:
    """Outputs (..., N, k) of rows as if not trained on, from those trained on targets T (N, k).

    (f - ℓt) / (1 - ℓ) for the leverage ℓ (..., N) of a row with all of its weight (Hastie,
    Tibshirani, Friedman, 2009, eq. 7.64).
    """
    leverage = leverage[..., None]
    return (outputs - leverage * T) / np.maximum(1 - leverage, _MIN_LEFT)


def _solve(A: Any, B: Any, ridge: float) -> tuple[Any, Callable[[Any], Any], bool]:
    """(A + ridge I)⁻¹ B, the whitening, and whether A was definite; A is overwritten."""
    xp, diagonal = library(A), A.diagonal().copy()
    for attempt in range(_N_RETRIES + 1):
        xp.fill_diagonal(A, diagonal + ridge * 100.0**attempt)
        try:
            with stage("output training", "Cholesky"):
                count(operations=len(A) ** 3 / 3, kind="float64", nbytes=A.nbytes)
                L = cholesky(A)
        except np.linalg.LinAlgError:
            continue
        if attempt:
            warn(
                "HᵀH is not positive definite in floating point: the penalty was multiplied "
                f"by {100**attempt}. Use a larger alpha, a larger gamma, fewer centers or "
                "precision='float64'.",
                ConvergenceWarning,
            )
        half = solve_triangular(L, B)
        return solve_triangular(L, half, trans=1), partial(solve_triangular, L), not attempt
    xp.fill_diagonal(A, diagonal)
    # Vectors of eigenvalues near zero would depend on the number of BLAS threads.
    with single_threaded_blas():
        values, vectors = eigh(A)
    warn(
        "HᵀH is not positive definite in floating point: it was solved by eigenvalues, and those "
        "smaller than their rounding error were raised to it. Use a larger alpha, a larger gamma, "
        "fewer centers or precision='float64'.",
        ConvergenceWarning,
    )
    # The inverse of an eigenvalue that is only rounding would be the largest of all.
    rounding = xp.maximum(-values[0], ROUNDING * values[-1])
    roots = xp.sqrt(xp.maximum(values, rounding) + ridge)
    half = vectors / roots
    return half @ (half.T @ B), lambda V: half.T @ V, False
