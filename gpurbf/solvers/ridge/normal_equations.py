"""Ridge regression from the normal equations, which are sums and so can be fed batch by batch."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from gpurbf.data.exact_sums import exact_sum
from gpurbf.layer.backends.numba.gram import FEW, Grid
from gpurbf.layer.protocol import Layer, activations
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.checks import check_number, check_room
from gpurbf.runtime.errors import warn
from gpurbf.runtime.linalg import factorizations, mirror
from gpurbf.runtime.stages import count, stage, staged
from gpurbf.runtime.threads import (
    map_single_threaded_blas,
    parallel_for,
    single_threaded_blas,
)
from gpurbf.solvers.ridge.fixed_point import fixed_point, tolerable

# How often a hundred times larger ridge is tried before the eigenvalues are.
_N_RETRIES = 2
# Rows whose mean is the shift.
_SHIFT_ROWS = 1024
# Rows of a matrix that a thread adds to, and rows that it leaves out, at a time.
_ROWS_PER_BLOCK, _ROWS_LEFT_OUT = 256, 200
# Of the squares of H less its shift, a spread that is nothing but their rounding.
_ROUNDING = 8 * np.finfo(np.float64).eps
# A row whose outputs are its own doing has nothing left when it is left out.
_MIN_LEFT = 1e-9


class Ridge(BaseEstimator):
    """Least squares with a penalty on the weights, in closed form.

    Parameters
    ----------
    alpha : float, default=1e-6
        Penalty relative to the mean diagonal of HᵀH, > 0.
    fit_intercept : bool, default=True
        Whether the outputs have a constant, which is not penalised.
    """

    needs = "sums"
    n_epochs = 1

    def __init__(self, alpha: float = 1e-6, *, fit_intercept: bool = True) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept

    def check(self) -> None:
        """Raise for a bad parameter."""
        check_number("alpha", self.alpha, numbers.Real, 0, above=True)

    def solve(self, normal: NormalEquations, *, keep: bool = False) -> RidgeSolution:
        """Solve sums for the parameters; ``keep``, errors and warnings: `NormalEquations.solve`.

        Parameters
        ----------
        normal : NormalEquations
        keep : bool, default=False
            Whether the sums are needed again.

        Returns
        -------
        solution : RidgeSolution
        """
        return normal.solve(self.alpha, self.fit_intercept, keep=keep)


class OwnCenters(NamedTuple):
    """Rows that are centers themselves: their places, and of each a column, 1 for these centers.

    Equal centers are left out together: they have one weight, in parts, and the inverse of HᵀH has
    no digits left for one of them beside its twin where the penalty is small.
    """

    rows: np.ndarray
    units: np.ndarray

    def within(self, part: slice) -> OwnCenters:
        """Those of some of the rows, by their places there."""
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
        The part of the intercept in the leverage of a row of weight 1.
    whiten : callable
        Maps V (m, N), of the library that solved, to L⁻¹ V, where L Lᵀ is the matrix solved.
    xp : module
        The library that solved.
    """

    W: np.ndarray
    intercept: np.ndarray
    mean: np.ndarray
    intercept_leverage: float
    whiten: Callable[[Any], Any]
    xp: ModuleType = np

    @staged("back and evaluate", "leave-one-out")
    def leave_one_out(
        self,
        H: Any,
        T: np.ndarray,
        weights: np.ndarray | None = None,
        own: OwnCenters | None = None,
    ) -> np.ndarray:
        """Outputs for training rows, each as if not trained on.

        The closed form of ridge regression (Hastie, Tibshirani, Friedman, 2009, eq. 7.64). A row
        that is a center is left out with it, as in `RidgePath.leave_one_out`.

        Parameters
        ----------
        H : array of shape (N, m), of the library that solved
            The rows as they were summed.
        T : ndarray of shape (N, k)
            Targets that the rows were trained on.
        weights : ndarray of shape (N,), optional
            Weights that they were trained with, all copies of a row together; by default 1.
        own : OwnCenters, optional
            Rows that are centers.

        Returns
        -------
        outputs : ndarray of shape (N, k), float64
        """
        n = len(H)
        step = _ROWS_LEFT_OUT if self.xp is np else max(1, n)
        parts = [slice(i, min(i + step, n)) for i in range(0, max(1, n), step)]

        def task(part: slice) -> np.ndarray:
            w = None if weights is None else weights[part]
            return self._left_out(H[part], T[part], w, None if own is None else own.within(part))

        return np.concatenate(map_single_threaded_blas([partial(task, part) for part in parts]))

    def _left_out(
        self, H: Any, T: np.ndarray, weights: np.ndarray | None, own: OwnCenters | None
    ) -> np.ndarray:
        """See `leave_one_out`; of rows that are evaluated together."""
        xp = self.xp
        outputs = to_host(H @ xp.asarray(self.W)) + self.intercept
        half = self._half((H - xp.asarray(self.mean)).astype(np.float64, copy=False).T)
        leverage = to_host((half * half).sum(axis=0)) + self.intercept_leverage
        if own is not None and len(own.rows):
            at_center = self._half(xp.asarray(own.units))
            cross = to_host((half[:, xp.asarray(own.rows)] * at_center).sum(axis=0))
            ratio = cross / to_host((at_center * at_center).sum(axis=0))
            outputs[own.rows] -= ratio[:, None] * (own.units.T @ self.W)
            leverage[own.rows] -= ratio * cross
        return left_out(outputs, leverage if weights is None else weights * leverage, T)

    def _half(self, V: Any) -> Any:
        """L⁻¹ V."""
        half = self.whiten(V)
        m = len(half)
        count(operations=half.size * m, kind="float64", nbytes=half.nbytes + 8 * m * m)
        return half


def left_out(outputs: np.ndarray, leverage: np.ndarray, T: np.ndarray) -> np.ndarray:
    """Outputs (..., N, k) of rows as if not trained on, from those trained on targets T (N, k).

    (f - ℓt) / (1 - ℓ) for the leverage ℓ (..., N) of all of a row's weight (Hastie, Tibshirani,
    Friedman, 2009, eq. 7.64).
    """
    leverage = leverage[..., None]
    return (outputs - leverage * T) / np.maximum(1 - leverage, _MIN_LEFT)


class System(NamedTuple):
    """The normal equations A W = B of a least-squares problem, before any ridge.

    A (m, m) and B (m, k) are of centred H and T where there is an intercept, and of the library
    ``xp``; ``mean`` (m,) and ``target_mean`` (k,) are what was subtracted, zero without one, and
    ``scale`` is the mean diagonal of A; of HᵀH where no more is left in A than rounding.
    """

    A: Any
    B: Any
    mean: np.ndarray
    target_mean: np.ndarray
    scale: float
    xp: ModuleType

    def intercept(self, W: np.ndarray) -> np.ndarray:
        """b (k,) of weights W (m, k)."""
        return self.target_mean - self.mean @ W


class NormalEquations:
    """The sums HᵀH, HᵀT, Hᵀ1, 1ᵀT and 1ᵀ1 of a least-squares problem, in float64.

    H is taken relative to ``shift``, its mean over the first rows: where kernels are wide all of H
    is nearly the same number, and sums of its squares would keep no digits of the differences.
    Where a ridge is told and it allows that, the sums are exact on a ``grid``; see `fixed_point`.
    Whoever has added the rows asks whether they are `coarse`, and makes them again if so.

    Parameters
    ----------
    n_centers, n_outputs : int
        m and k.
    alpha : float, optional
        The least relative ridge that the sums are to be solved with.
    """

    def __init__(self, n_centers: int, n_outputs: int, alpha: float = 0.0) -> None:
        check_room(
            12 * n_centers * n_centers,
            f"HᵀH of {n_centers:,} centers and its factor",
            "take fewer centers, or a solver that keeps no sums, such as solver='lms'",
        )
        self.alpha = alpha
        # Where the layer computes; NumPy's before the first rows and in a pickle.
        self.layer: Layer | None = None
        self.shift: np.ndarray | None = None
        self.grid: Grid | None = None
        self.n_rows = 0
        # Sums on the CPU are those of the lower triangle.
        self.G: Any = np.zeros((n_centers, n_centers))
        # The last column is (H - shift)ᵀ 1.
        self.B: Any = np.zeros((n_centers, n_outputs + 1))
        # Fractions, which add up exactly.
        self.targets: Any = np.zeros(n_outputs, object)
        self.weight: Any = 0

    def copy(self) -> NormalEquations:
        """Copy the sums, to be added to while these stay as they are."""
        other = copy.copy(self)
        with self.allocator():
            other.G, other.B = self.G.copy(), self.B.copy()
        return other

    def grown(self, m: int, places: np.ndarray) -> NormalEquations:
        """The sums for m centers, of which these are at `places`: new ones were silent before."""
        larger = NormalEquations(m, len(self.targets))
        G = to_host(self.G)
        mirror(G)  # places need not be in order
        larger.G[np.ix_(places, places)] = G
        larger.B[places] = to_host(self.B)
        larger.targets, larger.weight = self.targets, self.weight
        larger.shift = np.zeros(m)
        larger.shift[places] = self.shift
        return larger

    def no_longer_rounded(self) -> NormalEquations:
        """A copy of the same sums, to which later rows are added as they are."""
        other = self.copy()
        other.grid, other.alpha = None, 0.0
        return other

    def coarse(
        self, layer: Layer, double: Layer, X: Any, weights: np.ndarray | None = None
    ) -> bool:
        """Whether rounding of H adds more than a tenth to the penalty.

        Rounding, to the grid and to the dtype of the layer, is measured on some of the rows added,
        X with these weights, for which ``double`` gives H in float64. Errors of many rows or
        centers may be alike, so what counts is the norm of all: beside that of as many independent
        errors, whose squares add as much to the diagonal as the promise allows.

        Parameters
        ----------
        layer, double : Layer
        X : ndarray or CSR of shape (s, n)
        weights : ndarray of shape (s,), optional

        Returns
        -------
        coarse : bool
        """
        m, n = len(self.G), float(self.weight)
        if not (self.alpha and n and len(self.G)):
            return False
        with self.allocator():
            diagonal, sums = to_host(self.G.diagonal()), to_host(self.B[:, -1])
        spread = float((diagonal - sums * sums / n).sum())
        if self.grid is not None and weights is not None and float(sums @ sums) > n * spread:
            # Sums with targets round these, √w among them: too little is left of the mean of
            # rows that lie farther from the shift than from each other.
            return True
        roots = np.ones(X.shape[0]) if weights is None else np.sqrt(weights)
        with layer.allocator():
            H = to_host(activations(layer, X))
        # Few rows: threads of BLAS would bring little and spin on through what comes next.
        with single_threaded_blas():
            errors = roots[:, None] * (self.summed(roots)(H) - to_host(activations(double, X)))
            if not np.isfinite(spread) or not np.isfinite(errors).all():
                return False  # `system` says so
            s = len(errors)
            largest = np.linalg.eigvalsh(errors @ errors.T)[-1] / (s**0.5 + m**0.5) ** 2
        return not tolerable(largest * m * self.n_rows, spread, self.alpha)

    def no_grid(self, layer: Layer) -> bool:
        """Whether sums that could be exact are not: the grid is too coarse for the centers."""
        return bool(self.alpha) and self.grid is None and len(self.G) >= FEW and layer.exact_sums

    @staged("output training", "sums")
    def add(self, layer: Layer, X: Any, T: np.ndarray, weights: np.ndarray | None) -> None:
        """Add rows; ``layer.gram`` gives HᵀH and HᵀT of them.

        Parameters
        ----------
        layer : Layer
            With m centers.
        X : ndarray or CSR of shape (N, n)
        T : ndarray of shape (N, k)
            Targets, whole numbers.
        weights : ndarray of shape (N,) or None
        """
        self.layer = layer
        with layer.allocator():
            self._move(layer.xp)
            targets = np.column_stack([T, np.ones(len(T))])
            if self.shift is None:
                w = np.ones(1) if weights is None else weights
                scale = np.abs(T).max(initial=1), w.max(initial=0), float(w.mean())
                self.begin(layer, X, *map(float, scale))
            out = self.G, self.B
            layer.gram(X, targets, weights, self.shift, out=out, grid=self.grid)
        self.n_rows += len(T)
        if weights is None:  # targets are whole numbers
            self.targets = self.targets + [Fraction(total) for total in T.sum(axis=0)]
            self.weight += Fraction(len(T))
        else:
            self.targets = self.targets + [exact_sum(column, weights) for column in T.T]
            self.weight += exact_sum(weights)

    def begin(
        self, layer: Layer, X: Any, target: float = 1.0, weight: float = 1.0, mean: float = 1.0
    ) -> None:
        """Choose the shift and, if there is one, the grid of these and all later sums.

        Parameters
        ----------
        layer : Layer
        X : ndarray or CSR of shape (N, n)
            The first of them are seen.
        target, weight, mean : float, default=1.0
            The largest target, the largest weight and the mean weight of all rows, as far as they
            are known.
        """
        with layer.allocator():
            if self.alpha and (found := fixed_point(layer, self.alpha, target, weight, mean)):
                self.shift, self.grid = found
                return
            # Any shift is right; one that float32 holds exactly is the same number everywhere.
            first = to_host(activations(layer, X[:_SHIFT_ROWS]).mean(axis=0, dtype=np.float64))
        self.shift, self.grid = first.astype(np.float32).astype(np.float64), None

    def allocator(self) -> AbstractContextManager[None]:
        """A context for work with the arrays of the layer's library."""
        return nullcontext() if self.layer is None else self.layer.allocator()

    def _move(self, xp: ModuleType) -> None:
        """Bring G and B to where the layer computes."""
        if xp is np:
            self.G, self.B = to_host(self.G), to_host(self.B)
        elif self.shift is None:  # zeros, which need not be copied
            self.G, self.B = xp.zeros(self.G.shape), xp.zeros(self.B.shape)
        else:
            self.G, self.B = xp.asarray(self.G), xp.asarray(self.B)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"G": to_host(self.G), "B": to_host(self.B), "layer": None}

    def plain(self) -> dict[str, Any]:
        """All of it as arrays and numbers."""
        return self.__getstate__() | {
            "grid": None if self.grid is None else tuple(self.grid),
            "targets": [total.as_integer_ratio() for total in self.targets],
            "weight": self.weight.as_integer_ratio(),
        }

    @classmethod
    def from_plain(cls, kept: dict[str, Any]) -> NormalEquations:
        """The sums that `plain` tells of."""
        self = object.__new__(cls)
        self.__dict__.update({"n_rows": 0} | kept)
        self.grid = None if kept["grid"] is None else Grid(*kept["grid"])
        self.targets = np.array([Fraction(*total) for total in kept["targets"]], object)
        self.weight = Fraction(*kept["weight"])
        return self

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
            If the matrix was not positive definite in floating point; it says what was done.
        """
        with self.allocator():
            system = self.system(fit_intercept, keep=keep)
            W, whiten = _solve(system.xp, system.A, system.B, alpha * system.scale)
            W = to_host(W)
        own = 1 / float(self.weight) if fit_intercept else 0.0
        return RidgeSolution(W, system.intercept(W), system.mean, own, whiten, system.xp)

    def system(self, fit_intercept: bool, *, keep: bool = False) -> System:
        """Make the system to be solved, in arrays of the layer's library.

        Parameters
        ----------
        fit_intercept, keep : bool
            See `solve`.

        Returns
        -------
        system : System
        """
        if self.shift is None:
            raise ValueError("There are no sums to solve: add rows first.")
        m, n, sums_of_targets = len(self.G), float(self.weight), self.targets.astype(float)
        xp = np if self.layer is None else self.layer.xp
        shift, targets, sums = xp.asarray(self.shift), xp.asarray(sums_of_targets), self.B[:, -1]
        A = self.G.copy() if keep else self.G
        squares = float(xp.trace(A)) / m
        if xp is np:
            mirror(A)
        if fit_intercept:
            offset = sums / n
            mean, target_mean = self.shift + to_host(offset), sums_of_targets / n
            B = self.B[:, :-1] - offset[:, None] * targets
            _add_outer(A, -n * offset, offset)
        else:
            mean, target_mean = np.zeros(m), np.zeros(len(sums_of_targets))
            B = self.B[:, :-1] + shift[:, None] * targets
            _add_outer(A, sums + n * shift, shift)
            _add_outer(A, shift, sums)
        scale = float(xp.trace(A)) / m
        if not np.isfinite(scale):
            raise FloatingPointError("sums over the hidden layer")
        if not scale > _ROUNDING * squares:  # no center answers otherwise to any sample
            scale = squares or 1.0
        return System(A, B, mean, target_mean, scale, xp)

    def summed(self, roots: np.ndarray | None = None) -> Callable[[Any], Any]:
        """Make a function that rounds H (N, m) as it was summed.

        Parameters
        ----------
        roots : ndarray of shape (N,), optional
            Roots of the rows' weights; by default 1.

        Returns
        -------
        summed : callable
        """
        if self.grid is None or self.shift is None:
            return lambda H: H
        return partial(self.grid.nearest, mean=self.shift, roots=roots)

    def summed_copies(self, H: Any, copies: tuple[np.ndarray, np.ndarray] | None) -> Any:
        """Rows H (N, m) as their copies were summed: their mean, as unequal weights round anew.

        All of a row's weight at that mean is what leave-one-out takes off.

        Parameters
        ----------
        H : array of shape (N, m)
        copies : (places, weights) or None
            Of each copy, the row itself among them, which of the rows it is and its weight; None:
            of weight 1.
        """
        if self.grid is None or copies is None:
            return self.summed()(H)
        places, weights = copies
        if len(places) == len(H):
            return self.summed(np.sqrt(weights)[np.argsort(places)])(H)
        H, sums = to_host(H), np.zeros(H.shape)
        for start in range(0, len(places), _ROWS_PER_BLOCK):
            some = slice(start, start + _ROWS_PER_BLOCK)
            rounded = self.summed(np.sqrt(weights[some]))(H[places[some]])
            np.add.at(sums, places[some], weights[some, None] * rounded)
        return sums / np.bincount(places, weights, len(H))[:, None]


def _add_outer(A: Any, u: Any, v: Any) -> None:
    """A += u vᵀ in blocks of rows: no second (m, m) array."""

    def task(i: int) -> None:
        rows = slice(i * _ROWS_PER_BLOCK, (i + 1) * _ROWS_PER_BLOCK)
        A[rows] += u[rows, None] * v

    # One thread gives a device its work.
    parallel_for(task, -(-len(A) // _ROWS_PER_BLOCK), None if isinstance(A, np.ndarray) else 1)


def _solve(xp: ModuleType, A: Any, B: Any, ridge: float) -> tuple[Any, Callable[[Any], Any]]:
    """(A + ridge I)⁻¹ B and the whitening; A is overwritten."""
    cholesky, solve_triangular, eigh = factorizations(xp)
    diagonal = A.diagonal().copy()
    for attempt in range(_N_RETRIES + 1):
        jitter = ridge * 100.0**attempt
        xp.fill_diagonal(A, diagonal + jitter)
        try:
            with stage("output training", "Cholesky"):
                count(operations=len(A) ** 3 / 3, kind="float64", nbytes=A.nbytes)
                L = cholesky(A)
        except np.linalg.LinAlgError:
            continue
        if attempt:
            warn(
                "HᵀH is not positive definite in floating point: the ridge was raised "
                f"{100**attempt} times. Use a larger alpha, a larger gamma, fewer centers or "
                "precision='float64'.",
                ConvergenceWarning,
            )
        half = solve_triangular(L, B, lower=True)
        return solve_triangular(L, half, lower=True, trans=1), partial(
            solve_triangular, L, lower=True
        )
    xp.fill_diagonal(A, diagonal)
    values, vectors = eigh(A)
    warn(
        "HᵀH is not positive definite in floating point: it was solved by eigenvalues, those below "
        "zero taken as zero. Use a larger alpha, a larger gamma, fewer centers or "
        "precision='float64'.",
        ConvergenceWarning,
    )
    roots = xp.sqrt(xp.maximum(values, 0) + ridge)
    half = vectors / roots
    return half @ (half.T @ B), lambda V: half.T @ V
