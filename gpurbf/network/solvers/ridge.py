"""Ridge regression from the normal equations, which are sums and so can be fed batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.exceptions import ConvergenceWarning

from gpurbf._stages import count, stage, staged

__all__ = ["NormalEquations", "RidgeSolution"]

# How often a hundred times larger ridge is tried before the eigenvalues are.
_RETRIES = 2
_SHIFT_ROWS = 1024


@dataclass
class RidgeSolution:
    """Output weights and intercept, and the whitening that leave-one-out needs.

    ``W`` is (m, k), ``intercept`` (k,), ``mean`` (m,) what was subtracted from H (zero without an
    intercept), ``whiten`` maps (m, N) to L⁻¹ of it where L Lᵀ is the matrix that was solved.
    """

    W: np.ndarray
    intercept: np.ndarray
    mean: np.ndarray
    weight: float
    fit_intercept: bool
    whiten: Callable[[np.ndarray], np.ndarray]

    @staged("back and evaluate", "leave-one-out")
    def leave_one_out(self, H: np.ndarray, T: np.ndarray) -> np.ndarray:
        """Outputs for training rows H (N, m), targets T (N, k), each as if once not trained on.

        The closed form of ridge regression (Hastie, Tibshirani, Friedman, 2009, eq. 7.64), for a
        copy of weight 1 of each row.
        """
        outputs = H @ self.W + self.intercept
        half = self.whiten(np.asarray(H - self.mean, np.float64).T)
        m = len(half)
        count(operations=half.size * m, kind="float64", nbytes=half.nbytes + 8 * m * m)
        leverage = np.einsum("ij,ij->j", half, half)
        if self.fit_intercept:
            leverage += 1 / self.weight
        rest = np.maximum(1 - leverage, 1e-9)[:, None]
        return (outputs - leverage[:, None] * T) / rest


class NormalEquations:
    """The sums HᵀH, HᵀT, Hᵀ1, 1ᵀT and 1ᵀ1 of a least-squares problem, in float64.

    H is taken relative to ``shift``, its mean over the first rows: where kernels are wide all of H
    is nearly the same number, and sums of its squares would keep no digits of the differences.

    Parameters
    ----------
    n_centers, n_outputs : int
        m and k.
    """

    def __init__(self, n_centers: int, n_outputs: int) -> None:
        self.shift: np.ndarray | None = None
        self.G = np.zeros((n_centers, n_centers))
        # The last column is (H - shift)ᵀ 1.
        self.B = np.zeros((n_centers, n_outputs + 1))
        self.targets = np.zeros(n_outputs)
        self.weight = 0.0

    @staged("output training", "sums")
    def add(self, layer: Any, X: Any, T: np.ndarray, weights: np.ndarray | None) -> None:
        """Add rows X (N, n) with targets T (N, k); ``layer.normal`` gives HᵀH and HᵀT of them."""
        if self.shift is None:
            # Any shift is right; one that float32 holds exactly stays the same number everywhere.
            first = layer.outputs(X[:_SHIFT_ROWS]).mean(axis=0, dtype=np.float64)
            self.shift = first.astype(np.float32).astype(np.float64)
        targets = np.column_stack([T, np.ones(len(T))])
        layer.normal(X, targets, weights, self.shift, out=(self.G, self.B))
        w = np.ones(len(T)) if weights is None else weights
        self.targets += w @ T
        self.weight += float(w.sum())

    @staged("output training", "sums")
    def solve(self, alpha: float, fit_intercept: bool, *, keep: bool = False) -> RidgeSolution:
        """Minimise Σ wᵢ |tᵢ - hᵢ W - b|² + λ |W|².

        λ is alpha times the mean diagonal of HᵀH, of the centred H where there is an intercept.

        Parameters
        ----------
        alpha : float
            Relative ridge, > 0: scaling the weights or the activations changes nothing.
        fit_intercept : bool
            Whether there is a b, which is not penalised.
        keep : bool, default=False
            Whether the sums are needed again; otherwise HᵀH is overwritten.

        Warns
        -----
        ConvergenceWarning
            If the matrix was not positive definite in floating point; it says what was done.
        """
        if self.shift is None:
            raise ValueError("There are no sums to solve: add rows first.")
        m, n, shift, sums = len(self.G), self.weight, self.shift, self.B[:, -1]
        A = self.G.copy() if keep else self.G
        if fit_intercept:
            offset = sums / n
            mean, target_mean = shift + offset, self.targets / n
            B = self.B[:, :-1] - np.outer(offset, self.targets)
            _add_outer(A, -n * offset, offset)
        else:
            mean, target_mean = np.zeros(m), np.zeros(len(self.targets))
            B = self.B[:, :-1] + np.outer(shift, self.targets)
            _add_outer(A, sums + n * shift, shift)
            _add_outer(A, shift, sums)
        scale = float(np.trace(A)) / m
        if not scale > 0:  # no center answers to any sample
            scale = 1.0
        W, whiten = _solve(A, B, alpha * scale)
        return RidgeSolution(W, target_mean - mean @ W, mean, self.weight, fit_intercept, whiten)


def _add_outer(A: np.ndarray, u: np.ndarray, v: np.ndarray) -> None:
    """A += u vᵀ row by row: no second (m, m) array."""
    for i in range(len(A)):
        A[i] += u[i] * v


def _solve(
    A: np.ndarray, B: np.ndarray, ridge: float
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """(A + ridge I)⁻¹ B and the whitening; A is overwritten."""
    diagonal = A.diagonal().copy()
    for attempt in range(_RETRIES + 1):
        jitter = ridge * 100.0**attempt
        np.fill_diagonal(A, diagonal + jitter)
        try:
            # Cholesky reads and writes the lower triangle: a failure leaves the upper one whole.
            # A is symmetric, so its transpose is the Fortran order that LAPACK works on in place.
            with stage("output training", "Cholesky"):
                count(operations=len(A) ** 3 / 3, kind="float64", nbytes=A.nbytes)
                L, _ = scipy.linalg.cho_factor(
                    A.T, lower=True, overwrite_a=True, check_finite=False
                )
        except np.linalg.LinAlgError:
            _restore_lower(A.T)
            continue
        if attempt:
            warnings.warn(
                "HᵀH is not positive definite in floating point: the ridge was raised "
                f"{100**attempt} times. Use a larger alpha, a larger gamma, fewer centers or "
                "precision='float64'.",
                ConvergenceWarning,
                stacklevel=5,
            )
        W = scipy.linalg.cho_solve((L, True), B, check_finite=False)
        return W, partial(scipy.linalg.solve_triangular, L, lower=True, check_finite=False)
    np.fill_diagonal(A, diagonal)
    values, vectors = scipy.linalg.eigh(A.T, overwrite_a=True, check_finite=False)
    warnings.warn(
        "HᵀH is not positive definite in floating point: it was solved by eigenvalues, those below "
        "zero taken as zero. Use a larger alpha, a larger gamma, fewer centers or "
        "precision='float64'.",
        ConvergenceWarning,
        stacklevel=5,
    )
    roots = np.sqrt(np.maximum(values, 0) + ridge)
    half = vectors / roots
    return half @ (half.T @ B), lambda V: half.T @ V


def _restore_lower(A: np.ndarray) -> None:
    """Copy the upper triangle back over the lower one, in blocks."""
    block = 512
    for i in range(0, len(A), block):
        for j in range(0, i + block, block):
            part = A[j : j + block, i : i + block].T
            if i == j:
                rows, columns = np.tril_indices(len(part), -1)
                A[i + rows, i + columns] = part[rows, columns]
            else:
                A[i : i + block, j : j + block] = part
