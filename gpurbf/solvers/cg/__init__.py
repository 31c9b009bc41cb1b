"""Preconditioned conjugate gradients, for any number of centers up to all samples."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from gpurbf.layer import Layer
from gpurbf.runtime.checks import check_flag, check_number
from gpurbf.runtime.errors import OutOfRange, warn
from gpurbf.runtime.stages import stage
from gpurbf.solvers.cg.systems import KernelSystem, LeastSquares, System

# Number of parts of the samples that are left out one after the other; for each part, the maximum
# number of iterations without it and the relative residual at which they end.
_N_PARTS, _MAX_ITERATIONS_WITHOUT, _RESIDUAL_WITHOUT = 10, 10, 0.2


@dataclass
class CGSolution:
    """Solution of `CG` after ``n_iter`` iterations, with this relative residual."""

    system: System
    V: np.ndarray
    n_iter: int
    residual: float

    @property
    def info(self) -> str:
        """One line on the system solved and its residual."""
        n, said = self.n_iter, f"{self.system.name}, {self.system.info}"
        return f"{said}, {n} iteration{'s' * (n > 1)}, relative residual {self.residual:.1e}"

    @stage("output training")
    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Output weights.

        Returns
        -------
        W : ndarray of shape (m, k), float64
        b : ndarray of shape (k,), float64
            The intercept.
        """
        return self.system.weights(self.V)

    @stage("back and evaluate", "leave-one-out")
    def left_out(self, rows: np.ndarray, T: np.ndarray, mass: np.ndarray) -> np.ndarray:
        """Outputs for some of the samples, nearly as if they had not been trained on.

        If there is a closed form, each sample is left out by itself. If not, up to a tenth of the
        samples are left out together, and some more iterations bring the solution close to that of
        the other samples.

        Parameters
        ----------
        rows : int array of shape (r,)
            Numbers of the samples.
        T : ndarray of shape (r, k)
            Mean targets of these samples and their copies.
        mass : ndarray of shape (r,)
            Weights of these samples, all copies of a sample together.

        Returns
        -------
        outputs : ndarray of shape (r, k), float64
        """
        outputs = self.system.leave_one_out(*self.system.weights(self.V), rows, T, mass)
        if outputs is not None:
            return outputs
        # Equal samples are one where they are the centers.
        n_parts = min(len(rows), -(-len(rows) * _N_PARTS // len(self.system.T)))
        return np.concatenate([self._without(part) for part in np.array_split(rows, n_parts)])

    def _without(self, rows: np.ndarray) -> np.ndarray:
        system, V = self.system.without(self.V, rows)
        R = system.residual(V)
        for residual in islice(_iterations(system, V, R, R), _MAX_ITERATIONS_WITHOUT):
            if residual <= _RESIDUAL_WITHOUT:
                break
        W, b = system.weights(V)
        return system.layer.matvec(system.X[rows], W) + b


class CG(BaseEstimator):
    """Least squares with a penalty, by preconditioned conjugate gradients for all outputs at once.

    The matrix of the system is not formed: its product with a few vectors is one pass over H. H is
    kept if half of the free memory, or three quarters of ``config_context(memory=...)``, have room
    for it, in 16 bits if rounding to them adds less than a tenth to the penalty. Otherwise it is
    made anew in every iteration. ``solver_info_`` says which.

    Where all samples are centers and the kernel is positive definite (Gaussian, Laplacian and
    inverse multiquadric of Euclidean distances, Laplacian of Manhattan ones), this is kernel ridge
    regression: with H = K it minimises ``Σ wᵢ |tᵢ - f(xᵢ) - b|² + λ VᵀKV`` for f = KV, and λ is
    `alpha` times the sum of the weights. Elsewhere it minimises ``Σ wᵢ |tᵢ - hᵢ W - b|² + λ |W|²``
    with the λ of :class:`Ridge`, so the solution is the same.

    Parameters
    ----------
    alpha : float, default=1e-6
        Penalty, > 0, relative to the sum of the weights for kernel ridge regression, else as for
        :class:`Ridge`.
    fit_intercept : bool, default=True
        Whether the outputs have an intercept, which is not penalised.
    tol : float, default=1e-2
        The iteration ends when the residual of every output is at most this fraction of its
        right-hand side, > 0. The system is that of H as it is kept. If all samples are centers, 16
        bits may add ten times `tol` to the penalty, and a tenth at most. Otherwise H is rounded as
        :class:`Ridge` rounds it, whatever `tol` is, unless ``precision="float64"``. On a GPU H is
        made anew in every iteration and multiplied in its dtype: float32 does not reach a `tol`
        below about 1e-6.
    max_iter : int, default=100
        Maximum number of iterations.
    preconditioner : int or None, default=None
        Number of centers that the preconditioner is made of. None: all centers if there are up to
        24,000, or up to 10,000 if all samples are centers; their kernel is factorised, in m²/2
        numbers. With more centers, 2,000 of them.
    start : array-like of shape (m, n_outputs) or None, default=None
        Output weights to start from, for example ``coef_.T`` of a model with the same centers that
        was trained with another penalty.
    """

    needs = "products"

    def __init__(
        self,
        alpha: float = 1e-6,
        *,
        fit_intercept: bool = True,
        tol: float = 1e-2,
        max_iter: int = 100,
        preconditioner: int | None = None,
        start: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.preconditioner = preconditioner
        self.start = start

    def check(self) -> None:
        """Raise for a bad parameter."""
        check_number("alpha", self.alpha, numbers.Real, 0, above=True)
        check_flag("fit_intercept", self.fit_intercept)
        check_number("tol", self.tol, numbers.Real, 0, above=True)
        check_number("max_iter", self.max_iter, numbers.Integral, 1)
        if self.preconditioner is not None:
            check_number("preconditioner", self.preconditioner, numbers.Integral, 1)

    @stage("output training")
    def system(
        self,
        layer: Layer,
        X: Any,
        T: np.ndarray,
        weights: np.ndarray | None,
        places: np.ndarray | None = None,
    ) -> System:
        """Make the system that `iterations` solves.

        Parameters
        ----------
        layer : Layer
            With m centers.
        X : ndarray or CSR of shape (N, n)
        T : ndarray of shape (N, k)
            Targets.
        weights : ndarray of shape (N,) or None
        places : ndarray of shape (N,) or None
            The number of the center equal to each sample, if every sample is a center and the
            kernel is positive definite.

        Returns
        -------
        system : KernelSystem or LeastSquares
            The first if there are places.
        """
        w = np.ones(len(T)) if weights is None else weights
        if places is None:
            return LeastSquares(layer, X, T, w, self)
        return KernelSystem(layer, X, places, T, w, self)

    def iterations(self, system: System) -> Iterator[CGSolution]:
        """Iterate; the caller may stop after any iteration.

        Parameters
        ----------
        system : KernelSystem or LeastSquares

        Yields
        ------
        solution : CGSolution
            The next iteration changes its V in place.

        Warns
        -----
        ConvergenceWarning
            If the residual is larger than `tol` after the last iteration.
        """
        B = system.B
        V = np.zeros(B.shape) if self.start is None else self._start(system)
        R = B.copy() if self.start is None else system.residual(V)
        found = islice(_iterations(system, V, R, B), self.max_iter)
        for n_iter, residual in enumerate(found, 1):
            yield CGSolution(system, V, n_iter, residual)
            if residual <= self.tol:
                return
        warn(
            f"conjugate gradients stopped after max_iter={self.max_iter} iterations with a "
            f"relative residual of {residual:.1e}, tol={self.tol:g}: raise max_iter, alpha or tol.",
            ConvergenceWarning,
        )

    def _start(self, system: System) -> np.ndarray:
        W, shape = np.asarray(self.start, np.float64), (len(system.B), system.T.shape[1])
        if W.shape != shape or not np.isfinite(W).all():
            raise ValueError(
                f"start must be finite numbers of shape {shape}, a row for each center and a "
                f"column for each output, got {'NaN' if W.shape == shape else W.shape}."
            )
        return system.start(W)


def _iterations(system: System, V: np.ndarray, R: np.ndarray, B: np.ndarray) -> Iterator[float]:
    """The largest relative residual after each step; V and its residual R change in place.

    Residuals are relative to the norms of the columns of B, as it is at the beginning. Each column
    has its own steps (Hestenes and Stiefel, 1952); products are made for all columns together.
    """
    P, before, norms = np.zeros(V.shape), np.ones(V.shape[1]), np.linalg.norm(B, axis=0)
    norms[norms == 0] = 1
    while True:
        Z = system.preconditioner.solve(R)
        now = np.einsum("ij,ij->j", R, Z)
        P = Z + _ratio(now, before) * P
        Z = system.matvec(P)
        step = _ratio(now, np.einsum("ij,ij->j", P, Z))
        V += step * P
        R -= step * Z
        before, residual = now, float((np.linalg.norm(R, axis=0) / norms).max())
        if not np.isfinite(residual):
            raise OutOfRange("sums over the hidden layer")
        yield residual


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, and 0 where a column is solved."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
