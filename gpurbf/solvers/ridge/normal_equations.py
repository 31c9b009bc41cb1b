"""The normal equations of least squares: sums, which can be fed batch by batch."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.exact_sums import exact_sum
from gpurbf.layer import Layer
from gpurbf.layer.backends.numba.gram import FEW, Grid
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.errors import OutOfRange
from gpurbf.runtime.linalg import dot, mirror
from gpurbf.runtime.memory import check_room
from gpurbf.runtime.stages import stage
from gpurbf.runtime.threads import limited, parallel_rows, single_threaded_blas
from gpurbf.solvers.ridge.fixed_point import LEAST_ROWS_PER_CENTER, tolerable

# Rows of a matrix that a thread adds to at a time.
_ROWS_PER_BLOCK = 256
# A spread below this fraction of the squares of H minus its shift, or an eigenvalue of HᵀH below
# this fraction of the largest, is only rounding.
ROUNDING = 8 * np.finfo(np.float64).eps


class Equations(NamedTuple):
    """The normal equations A W = B of a least-squares problem, before any ridge.

    A (m, m) and B (m, k) are arrays of the layer's library, for centred H and T if there is an
    intercept. ``mean`` (m,) and ``target_mean`` (k,) are what was subtracted, zero without an
    intercept. ``scale`` is the mean diagonal of A, or of HᵀH if only rounding is left in A.
    """

    A: Any
    B: Any
    mean: np.ndarray
    target_mean: np.ndarray
    scale: float

    def intercept(self, W: np.ndarray) -> np.ndarray:
        """b (k,) of weights W (m, k)."""
        return self.target_mean - dot(self.mean, W)


class NormalEquations:
    """The sums HᵀH, HᵀT, Hᵀ1, 1ᵀT and 1ᵀ1 of a least-squares problem, in float64.

    H is taken relative to ``shift``, as with wide kernels all of H is nearly the same number, and
    sums of its squares would lose the digits of the differences. On a ``grid`` the sums are exact.
    The caller that has added the rows checks whether they are `coarse`, and then makes the sums
    again.

    Parameters
    ----------
    n_outputs : int
        k.
    shift : ndarray of shape (m,)
    grid : Grid or None, default=None
        Both as `fixed_point` finds them.
    alpha : float, default=0.0
        The smallest relative ridge that the sums will be solved with, as given to `fixed_point`.
    """

    def __init__(
        self, n_outputs: int, shift: np.ndarray, grid: Grid | None = None, alpha: float = 0.0
    ) -> None:
        n_centers = len(shift)
        check_room(
            12 * n_centers * n_centers,
            f"HᵀH of {n_centers:,} centers and its factor",
            "take fewer centers, or RBFClassifier's solver='cg', which keeps no sums",
        )
        self.shift, self.grid, self.alpha = shift, grid, float(alpha)
        # The layer decides where the sums are; None, before the first rows and in a pickle: NumPy.
        self.layer: Layer | None = None
        self.n_rows = 0
        # On the CPU only the lower triangle is summed.
        self.G: Any = np.zeros((n_centers, n_centers))
        # The last column is (H - shift)ᵀ 1.
        self.B: Any = np.zeros((n_centers, n_outputs + 1))
        # Fractions, which add up exactly.
        self.targets: Any = np.zeros(n_outputs, object)
        self.weight: Any = 0

    def copy(self) -> NormalEquations:
        """Copy the sums: rows can be added to the copy while these stay as they are."""
        other = copy.copy(self)
        with self.allocator():
            other.G, other.B = self.G.copy(), self.B.copy()
        return other

    def grown(self, m: int, places: np.ndarray) -> NormalEquations:
        """The sums for m centers, with these at `places`; new ones had no activation before."""
        shift = np.zeros(m)
        shift[places] = self.shift
        larger = NormalEquations(len(self.targets), shift)
        G = np.array(to_host(self.G))
        mirror(G)  # places need not be in order
        larger.G[np.ix_(places, places)] = G
        larger.B[places] = to_host(self.B)
        larger.targets, larger.weight = self.targets, self.weight
        return larger

    def coarse(
        self, layer: Layer, double: Layer, X: Any, weights: np.ndarray | None = None
    ) -> bool:
        """Whether rounding of H adds over a tenth to the penalty, or 2 % to the squared residuals.

        Rounding, to the grid and to the dtype of the layer, is measured on some of the rows added,
        X with these weights, for which ``double`` gives H in float64. Errors of many rows or
        centers may be correlated, so the norm of all errors counts. It is compared with the norm of
        as many independent errors, whose squares add as much to the diagonal as is allowed.

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
        if not (self.alpha and n and m):
            return False
        with self.allocator():
            diagonal, sums = to_host(self.G.diagonal()), to_host(self.B[:, -1])
        spread = float((diagonal - sums * sums / n).sum())
        if self.grid is not None and weights is not None and float(sums @ sums) > n * spread:
            # Sums with targets round the targets, √w included: this leaves too few digits of the
            # mean if rows lie farther from the shift than from each other.
            return True
        roots = np.ones(X.shape[0]) if weights is None else np.sqrt(weights)
        H = layer.activations(X)
        # Few rows: BLAS threads would help little and keep spinning during the next step.
        with single_threaded_blas():
            errors = roots[:, None] * (self.summed(H, roots) - double.activations(X))
            if not np.isfinite(spread) or not np.isfinite(errors).all():
                return False  # `equations` raises the error
            s = len(errors)
            largest = np.linalg.eigvalsh(errors @ errors.T)[-1] / (s**0.5 + m**0.5) ** 2
        n_rows = max(self.n_rows, LEAST_ROWS_PER_CENTER * m)
        return not tolerable(largest * m * n_rows, spread, self.alpha)

    def no_grid(self, layer: Layer) -> bool:
        """Whether sums that could be exact are not, as the grid is too coarse for the centers."""
        return bool(self.alpha) and self.grid is None and len(self.G) >= FEW and layer.exact_sums

    @stage("output training", "sums")
    def add(self, layer: Layer, X: Any, T: np.ndarray, weights: np.ndarray | None) -> None:
        """Add rows; ``layer.gram`` gives HᵀH and HᵀT of them.

        Parameters
        ----------
        layer : Layer
            With m centers.
        X : ndarray or CSR of shape (N, n)
        T : ndarray of shape (N, k)
            Targets, whole numbers; on a grid from -1 to 1.
        weights : ndarray of shape (N,) or None
        """
        self.layer, xp = layer, layer.xp
        with layer.allocator():
            if self.weight:
                move = to_host if xp is np else xp.asarray
                self.G, self.B = move(self.G), move(self.B)
            else:  # zeros, which need not be copied to a device
                self.G, self.B = xp.zeros(self.G.shape), xp.zeros(self.B.shape)
            targets = np.column_stack([T, np.ones(len(T))])
            layer.gram(X, targets, weights, self.shift, out=(self.G, self.B), grid=self.grid)
        self.n_rows += len(T)
        if weights is None:  # targets are whole numbers
            totals: list[Any] = [Fraction(total) for total in np.einsum("ij->j", targets)]
        else:
            totals = [_total(column, weights) for column in targets.T]
        self.targets, self.weight = self.targets + totals[:-1], self.weight + totals[-1]

    def allocator(self) -> AbstractContextManager[None]:
        """A context for work with the arrays of the layer's library."""
        return nullcontext() if self.layer is None else self.layer.allocator()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"G": to_host(self.G), "B": to_host(self.B), "layer": None}

    def plain(self) -> dict[str, Any]:
        """The state as arrays and numbers."""
        return self.__getstate__() | {
            "grid": None if self.grid is None else tuple(self.grid),
            "targets": [total.as_integer_ratio() for total in self.targets],
            "weight": self.weight.as_integer_ratio(),
        }

    @classmethod
    def from_plain(cls, kept: dict[str, Any]) -> NormalEquations:
        """Restore the sums from the result of `plain`."""
        self = object.__new__(cls)
        self.__dict__.update({"n_rows": 0} | kept)
        self.grid = None if kept["grid"] is None else Grid(*kept["grid"])
        self.targets = np.array([Fraction(*total) for total in kept["targets"]], object)
        self.weight = Fraction(*kept["weight"])
        return self

    def equations(self, fit_intercept: bool, *, keep: bool = False) -> Equations:
        """Make the equations to be solved, in arrays of the layer's library.

        Parameters
        ----------
        fit_intercept, keep : bool
            See `Ridge.solve`.

        Returns
        -------
        equations : Equations
        """
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
            raise OutOfRange("sums over the hidden layer")
        return Equations(A, B, mean, target_mean, relative_to(scale, squares))

    def summed(self, H: Any, roots: np.ndarray | None = None) -> Any:
        """H (N, m), rounded as in the sums.

        Parameters
        ----------
        H : array of shape (N, m)
        roots : ndarray of shape (N,), optional
            Roots of the rows' weights; by default 1.

        Returns
        -------
        H : array of shape (N, m)
        """
        return H if self.grid is None else self.grid.nearest(H, self.shift, roots)

    def summed_copies(self, H: Any, copies: tuple[np.ndarray, np.ndarray] | None) -> Any:
        """Rows H (N, m) as summed, each the mean of its copies: each weight is rounded differently.

        Leave-one-out subtracts the total weight of a row at that mean.

        Parameters
        ----------
        H : array of shape (N, m)
        copies : (places, weights) or None
            For each copy, the row itself included: the number of its row, and its weight. None: no
            copies, all weights 1.
        """
        if self.grid is None or copies is None:
            return self.summed(H)
        places, weights = copies
        if len(places) == len(H):
            return self.summed(H, np.sqrt(weights)[np.argsort(places)])
        H, sums = to_host(H), np.zeros(H.shape)
        for start in range(0, len(places), _ROWS_PER_BLOCK):
            some = slice(start, start + _ROWS_PER_BLOCK)
            rounded = self.summed(H[places[some]], np.sqrt(weights[some]))
            np.add.at(sums, places[some], weights[some, None] * rounded)
        return sums / np.bincount(places, weights, len(H))[:, None]


def relative_to(scale: float, squares: float) -> float:
    """The number that alpha multiplies: A's mean diagonal, or the squares if that is only rounding.

    It is only rounding if every center has the same activation for all samples.
    """
    return scale if scale > ROUNDING * squares else squares or 1.0


def _total(targets: np.ndarray, weights: np.ndarray) -> Any:
    """Σ weights · targets, exactly, for targets of few different values; zeros add nothing."""
    return sum(Fraction(t) * exact_sum(weights[targets == t]) for t in np.unique(targets) if t)


def _add_outer(A: Any, u: Any, v: Any) -> None:
    """A += u vᵀ in blocks of rows: no second (m, m) array."""

    def task(rows: slice) -> None:
        A[rows] += u[rows, None] * v

    # On a device, one thread launches the work.
    with limited(None if isinstance(A, np.ndarray) else 1):
        parallel_rows(task, len(A), _ROWS_PER_BLOCK)
