"""Ridge regression for many penalties from one decomposition, and what it says of rows left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from gpurbf.runtime.errors import warn
from gpurbf.runtime.stages import stage, staged
from gpurbf.solvers.ridge.normal_equations import NormalEquations, OwnCenters
from gpurbf.solvers.ridge.tridiagonal import Tridiagonal, products, tridiagonal

# A row whose outputs are its own doing has nothing left when it is left out.
_LEAST = 1e-9
# Eigenvalues of T, as a part of its norm, below which they are rounding.
_ROUNDING = 8 * np.finfo(np.float64).eps


class RidgePath:
    """Least squares with each of some penalties, from HᵀH as Q T Qᵀ with T tridiagonal.

    T + λI is solved in O(m) for any λ, so all penalties together take less time than one more
    Cholesky factorisation.

    Parameters
    ----------
    normal : NormalEquations
        The sums, which are overwritten.
    alphas : ndarray of shape (p,)
        Penalties relative to the mean diagonal of HᵀH, > 0, as of `Ridge`.
    fit_intercept : bool
        Whether there is a constant, which is not penalised.
    """

    def __init__(self, normal: NormalEquations, alphas: np.ndarray, fit_intercept: bool) -> None:
        with normal.allocator():
            self.system = system = normal.system(fit_intercept)
            with stage("output training", "tridiagonal form"):
                self.form: Tridiagonal = tridiagonal(system.xp, system.A)
                turned = self.form.turn(system.B.T)
        self.shifts = alphas * system.scale + self._lacking(alphas.min() * system.scale)
        # Of each penalty the weights (k, m), turned.
        self.weights = np.stack([self.form.solve(shift, turned) for shift in self.shifts])
        self.copies = 1 / float(normal.weight) if fit_intercept else 0.0

    def _lacking(self, least: float) -> float:
        """Shift by which all penalties are positive definite in floating point; 0 if none."""
        lacking = max(0.0, _ROUNDING * self.form.norm() - self.form.lowest())
        if lacking > least:
            warn(
                "HᵀH is not positive definite in floating point with the least of alphas, to "
                f"which {lacking / self.system.scale:.2g} is added. Leave out those below, or use "
                "a larger gamma, fewer centers or precision='float64'.",
                ConvergenceWarning,
            )
        return lacking

    def solution(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """W (m, k) and the intercept (k,) for the penalty i."""
        W = np.ascontiguousarray(self.form.back(self.weights[i]).T)
        return W, self.system.intercept(W)

    @staged("back and evaluate", "leave-one-out")
    def leave_one_out(
        self, H: Any, T: np.ndarray, weights: np.ndarray, own: OwnCenters
    ) -> np.ndarray:
        """Outputs (p, N, k) for rows H (N, m), as they were summed, each as if not trained on.

        For targets T (N, k) and weights (N,) with which the rows were trained on, all their copies
        together. With a row that is a center this center is left out too: no new sample is one, so
        the outputs without it are those that tell what new samples will get.

        Notes
        -----
        Let A be the matrix solved, h the row and e the unit vector of its center. Without the
        center the output is f - (β / γ) W_e and its leverage α - β² / γ, where α = hᵀA⁻¹h + 1/n, β
        = hᵀA⁻¹e and γ = eᵀA⁻¹e; without the row then (f - ℓt) / (1 - ℓ), ℓ the leverage times the
        weight (Hastie, Tibshirani, Friedman, 2009, eq. 7.64).
        """
        p, k, m = self.weights.shape
        xp = self.system.xp
        centred = (H - xp.asarray(self.system.mean)).astype(np.float64, copy=False)
        Z = self.form.turn(centred)
        unit = np.zeros((len(own.centers), m))
        unit[np.arange(len(unit)), own.centers] = 1
        E = self.form.turn(xp.asarray(unit))
        every = self.weights.reshape(p * k, m).T
        outputs = products(Z, every).reshape(len(Z), p, k).transpose(1, 0, 2)
        outputs = outputs + (self.system.target_mean)
        units = np.zeros(Z.shape)
        units[own.rows] = E
        leverage, cross, at_itself = self.form.forms(self.shifts, Z, units)
        leverage += self.copies
        if len(E):
            cross = cross[:, own.rows]
            ratio = cross / at_itself[:, own.rows]
            at_center = products(E, every).reshape(len(E), p, k).transpose(1, 0, 2)
            outputs[:, own.rows] -= ratio[..., None] * at_center
            leverage[:, own.rows] -= ratio * cross
        leverage = (weights * leverage)[..., None]
        return (outputs - leverage * T) / np.maximum(1 - leverage, _LEAST)
