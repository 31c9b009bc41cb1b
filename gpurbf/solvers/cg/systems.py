"""The linear systems that `CG` solves: products with matrices that are never made.

A system is (A + λI) V = B for symmetric A (m, m) and B (m, k). Its methods and attributes:

``matvec(V)``, ``residual(V)``
    (A + λI) V and B - (A + λI) V, shape (m, k).
``weights(V)``, ``start(W)``
    Output weights W (m, n_outputs) and the intercept of a solution, or of an intermediate V; the V
    that is nearest to output weights W.
``without(V, rows)``
    The system without the samples with these numbers, and without those that are equal to them, but
    with the same λ; and the V of this one as its start.
``leave_one_out(W, b, rows, T, mass)``
    Outputs of those `weights` for those samples, each as if it had not been trained on, by a closed
    form with the preconditioner instead of the inverse of A + λI. ``T`` and ``mass`` are the mean
    targets and total weights of all their copies, which are left out too. None if the
    preconditioner is not close enough to A + λI, as one of landmarks.
``layer``, ``X``, ``T``, ``B``, ``ridge``
    The layer, the samples, their targets (·, n_outputs), B, and λ.
``preconditioner``
    Its ``solve(V)`` is P⁻¹ V for a P that is close to A + λI.
``name``, ``info``
    The problem; whether and how H is kept.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpurbf.data.hashes import finder, row_hashes
from gpurbf.data.samples import FORCED
from gpurbf.layer import Layer, activations
from gpurbf.runtime.errors import OutOfRange
from gpurbf.runtime.linalg import add_gram, dot, mirror
from gpurbf.runtime.stages import stage
from gpurbf.runtime.threads import map_single_threaded_blas
from gpurbf.solvers.cg.preconditioners import Cholesky, Falkon, Nystrom
from gpurbf.solvers.cg.stored_h import rows_of
from gpurbf.solvers.ridge import OwnCenters, Ridge
from gpurbf.solvers.ridge.fixed_point import LEAST_ROWS_PER_CENTER, fixed_point, tolerable
from gpurbf.solvers.ridge.normal_equations import NormalEquations, relative_to

if TYPE_CHECKING:
    from gpurbf.solvers.cg import CG

# Maximum number of centers whose kernel is factorised, in m²/2 numbers, to precondition least
# squares, and if all samples are centers; number of centers that represent all of them beyond that.
_MAX_FALKON_CENTERS, _MAX_DIRECT_CENTERS, _N_LANDMARKS = 24_000, 10_000, 2_000
# Up to this many centers `Ridge` makes the left-out outputs: the preconditioner is for centers that
# are distributed as samples are, and so few may not be.
_MAX_SUMMED_CENTERS = 512
# A smaller penalty than this many times the rounding of the trace could be lost when it is added to
# the kernel's diagonal.
_MIN_RIDGE_PER_ROUNDING = 4
# Samples whose leave-one-out outputs are made at a time, and the maximum leverage of a sample.
_ROWS_PER_BLOCK, _MAX_LEVERAGE = 256, 0.99
# The step of 16 bits over the numbers from 0 to 1.
_STEP_OF_16_BITS = 1 / 65534
# Maximum fraction of the penalty that rounding of K may add to it; the same as a multiple of `tol`.
_MAX_NOISE, _MAX_NOISE_PER_TOL = 0.1, 10
# Twice the step of float32 there, as the exponential function rounds too.
_STEP_OF_FLOAT32 = 2.0**-23


class LeastSquares:
    """Σ wᵢ |tᵢ - hᵢ W - b|² + λ |W|², as `Ridge` has it: A = HᵀDH for D = diag(w), B = HᵀDT.

    If there is a b, the means of H and T are subtracted, and b follows from them. λ is alpha times
    the mean diagonal of A, and H is rounded to the grid of `NormalEquations`, so the solution is
    the same. Rows of H are kept minus a shift: the values of wide kernels are nearly the same
    number.
    """

    name = "least squares"

    def __init__(self, layer: Layer, X: Any, T: np.ndarray, w: np.ndarray, solver: CG) -> None:
        self.layer, self.X, self.T, self.w, self.solver = layer, X, T, w, solver
        self.alpha = float(solver.alpha)
        self._keep()
        may_widen = layer.dtype != np.float64 and layer.precision not in FORCED
        if may_widen and not self._tolerable(_STEP_OF_FLOAT32):
            self.layer = layer.in_float64()
            self._keep()
        m, n = len(self.mean), float(self.w.sum())
        self.trace = self.squares + n * float(dot(self.offset, self.offset - 2 * self.mean))
        self.ridge = self.alpha * relative_to(self.trace / m, self.squares / m)
        if not np.isfinite(self.ridge):
            raise OutOfRange("sums over the hidden layer")
        self.preconditioner = _preconditioner(self, _MAX_FALKON_CENTERS)

    def _keep(self) -> None:
        """Keep the rows of the layer, or prepare to make them anew, in 16 bits if possible."""
        # Rows are kept without their weights, so the grid is that of weights of 1.
        shift, grid = fixed_point(self.layer, self.X, self.alpha)
        self._keep_in(shift, grid.step if grid else None)
        if self.rows.step and not self._tolerable(self.rows.step):
            self._keep_in(shift, None)
            self.info += ", as 16 bits would add to the penalty"

    def _keep_in(self, shift: np.ndarray, step: float | None) -> None:
        self.__dict__.pop("rows", None)  # there may be no room for two of them
        self.rows, self.info = rows_of(self.layer, self.X, shift, step)
        self.squares = float(weighted_sum(self.w, self.rows.squares()))
        self._centre()

    def _centre(self) -> None:
        """Find B, the ``mean`` of the rows as they are kept, and the ``offset`` of their products.

        The offset is subtracted from them. Without a b it is minus the shift, so that H is not
        centred.
        """
        with_b, n = self.solver.fit_intercept, self.w.sum()
        self.target_mean = weighted_sum(self.w, self.T) / n if with_b else np.zeros(self.T.shape[1])
        U = self.w[:, None] * np.insert(self.T - self.target_mean, 0, 1, axis=1)
        sums = self.rows.rmatvec(U)
        self.mean = sums[:, 0] / n
        self.offset = self.mean if with_b else -self.rows.shift
        self.B = sums[:, 1:] - self.offset[:, None] * U[:, 1:].sum(axis=0)

    def _tolerable(self, step: float) -> bool:
        """Whether rows in multiples of that step are as good as those not rounded."""
        m, n = len(self.mean), float(self.w.sum())
        spread = self.squares - n * float(dot(self.mean, self.mean))
        n = max(n, LEAST_ROWS_PER_CENTER * m * n / len(self.w))
        return tolerable(m * n * step**2 / 12, spread, self.alpha)

    def factorised(self) -> Falkon:
        """The preconditioner of all centers; LinAlgError if there is none."""
        return Falkon(self.layer, self.ridge, float(self.w.sum()), self.solver.fit_intercept)

    def nystrom(self, E: np.ndarray, some: np.ndarray) -> Nystrom:
        """The preconditioner of some centers, whose activations are E (s, m)."""
        G = np.zeros((len(some), len(some)))
        for rows, part in self.rows.columns(some):
            part -= self.offset[some]
            part *= np.sqrt(self.w[rows])[:, None]
            add_gram(part.T, G)
        mirror(G)
        return Nystrom(E, some, np.ones(E.shape[1]), G, self.ridge, self.trace)

    def _times(self, V: np.ndarray) -> np.ndarray:
        return self.rows.matvec(V) - dot(self.offset, V)

    def _transposed(self, U: np.ndarray) -> np.ndarray:
        return self.rows.rmatvec(U) - self.offset[:, None] * U.sum(axis=0)

    def matvec(self, V: np.ndarray) -> np.ndarray:
        """(A + λI) V, shape (m, k)."""
        return self._transposed(self.w[:, None] * self._times(V)) + self.ridge * V

    def residual(self, V: np.ndarray) -> np.ndarray:
        """B - (A + λI) V, from the errors of the outputs."""
        errors = self.T - self.target_mean - self._times(V)
        return self._transposed(self.w[:, None] * errors) - self.ridge * V

    def weights(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """W and the b that is best for them, also where V is not yet the solution."""
        return V, self.target_mean - dot(self.offset + self.rows.shift, V)

    def start(self, W: np.ndarray) -> np.ndarray:
        """W itself."""
        return W

    def without(self, V: np.ndarray, rows: np.ndarray) -> tuple[LeastSquares, np.ndarray]:
        """The system without some samples, and V."""
        other = copy.copy(self)
        other.w = self.w.copy()
        other.w[np.isin(row_hashes(self.X, 0), row_hashes(self.X[rows], 0))] = 0
        if other.w.any():  # else there is nothing to take a mean of, and V becomes 0
            other._centre()
        return other, V.copy()

    def leave_one_out(
        self, W: np.ndarray, b: np.ndarray, rows: np.ndarray, T: np.ndarray, mass: np.ndarray
    ) -> np.ndarray | None:
        """Outputs by the closed form of `RidgeSolution`, for all of a sample's weight.

        With few centers, sums take little time, so `Ridge` computes the leverages, and leaves out
        the center that a sample is. With more, `Falkon` assumes that all samples have the same
        weight. So its leverage ℓ is that of a sample of mean weight, whose output without it is
        f + ℓ / (1 - ℓ) (f - t). The difference from f is proportional to the weight.
        """
        if len(W) <= _MAX_SUMMED_CENTERS:
            layer = self.layer.in_float64()
            normal = NormalEquations(len(b), *fixed_point(layer, self.X))
            normal.add(layer, self.X, self.T, self.w)
            solution = Ridge(self.alpha, fit_intercept=self.solver.fit_intercept).solve(normal)
            X, centers = self.X[rows], finder(row_hashes(layer.sparse_centers, 0))
            with layer.allocator():
                own = OwnCenters.of(layer, centers(row_hashes(X, 0)))
                return solution.leave_one_out(activations(layer, X), T, mass, own)
        if isinstance(self.preconditioner, Nystrom):
            return None
        outputs, leverage = np.empty((len(rows), len(b))), np.empty(len(rows))
        preconditioner = self.preconditioner

        def leave_out(part: slice) -> None:
            H = self.layer.activations(self.X[rows[part]]).astype(np.float64)
            outputs[part] = H @ W + b
            H -= self.offset + self.rows.shift
            leverage[part] = preconditioner.squares(H.T)

        # One thread launches the work of a device.
        step = _ROWS_PER_BLOCK if self.layer.xp is np else max(1, len(rows))
        parts = (slice(start, start + step) for start in range(0, len(rows), step))
        map_single_threaded_blas([partial(leave_out, part) for part in parts])
        mean = mass[mass > 0].mean() if mass.any() else 1.0  # samples of weight 0 do not count
        leverage += self.solver.fit_intercept / self.w.sum()
        if np.median(mean * leverage) > _MAX_LEVERAGE:
            return None  # of samples with many copies it is no estimate
        leverage = np.minimum(mean * leverage, _MAX_LEVERAGE)
        far = mass / mean * leverage / (1 - leverage)
        return outputs + far[:, None] * (outputs - T)


def weighted_sum(w: np.ndarray, A: np.ndarray) -> Any:
    """Σ wᵢ Aᵢ for w (N,) and A (N, ...), without BLAS: its threads would spin on for 25 ms."""
    return np.einsum("i,i...->...", w, A)


class KernelSystem:
    """Σ wᵢ |tᵢ - f(xᵢ) - b|² + λ VᵀKV for f = KV, samples that are the centers in their order.

    With D = diag(√w) and V = D U, the system is (D K D + λI) U = D (T - 1b), and λ is alpha times
    the trace of D K D. b follows from 1ᵀV = 0; for it, the system is also solved with D 1 on the
    right.

    ``places`` (N,) are the numbers of the centers equal to the samples; equal samples are taken
    together.
    """

    name = "kernel ridge regression"

    def __init__(
        self, layer: Layer, X: Any, places: np.ndarray, T: np.ndarray, w: np.ndarray, solver: CG
    ) -> None:
        m, self.X, self.places = layer.centers.shape[0], X, places
        sums = [np.bincount(places, w * t, m) for t in T.T]
        self.w = w = np.bincount(places, w, m)
        self.roots = np.sqrt(w)
        self.T = np.column_stack(sums) / np.where(w > 0, w, 1)[:, None]
        self.trace = n = float(w.sum())  # the kernel is 1 at a distance of 0
        self.ridge = float(solver.alpha) * n
        # The norm of a symmetric matrix of independent errors is twice their deviation times √m.
        noise = 2 / 12**0.5 * float(w.max()) * m**0.5
        step, most = None, min(_MAX_NOISE, _MAX_NOISE_PER_TOL * solver.tol) * self.ridge
        if layer.exact_sums and noise * _STEP_OF_16_BITS <= most:
            step = _STEP_OF_16_BITS
        elif layer.precision not in FORCED and noise * _STEP_OF_FLOAT32 > most:
            layer = layer.in_float64()
        self.layer, self.solver = layer, solver
        shift = np.full(m, 0.5 if step else 0.0)
        self.rows, self.info = rows_of(layer, layer.centers, shift, step, triangle=True)
        self.target_mean = dot(w, self.T) / n if self.solver.fit_intercept else np.zeros(T.shape[1])
        self.B = self.roots[:, None] * (self.T - self.target_mean)
        if self.solver.fit_intercept:
            self.B = np.column_stack([self.B, self.roots])
        self.preconditioner = _preconditioner(self, _MAX_DIRECT_CENTERS)

    def factorised(self) -> Cholesky:
        """In the layer's dtype, or in float64 if its rounding of such a matrix would matter."""
        dtype = self.layer.dtype
        fits = self.ridge >= _MIN_RIDGE_PER_ROUNDING * np.finfo(dtype).eps * self.trace
        return Cholesky(self.layer, self.ridge, dtype if fits else np.dtype(np.float64), self.roots)

    def nystrom(self, E: np.ndarray, some: np.ndarray) -> Nystrom:
        """The preconditioner of some centers, whose activations are E (s, m)."""
        return Nystrom(E, some, self.roots, None, self.ridge, self.trace)

    def matvec(self, U: np.ndarray) -> np.ndarray:
        """(D K D + λI) U, shape (m, k)."""
        V = self.roots[:, None] * U
        S = self.rows.matvec(V) + dot(self.rows.shift, V)
        return self.roots[:, None] * S + self.ridge * U

    def residual(self, U: np.ndarray) -> np.ndarray:
        """B - (D K D + λI) U, shape (m, k)."""
        return self.B - self.matvec(U)

    def start(self, W: np.ndarray) -> np.ndarray:
        """The U of W, and zeros for the column of the intercept."""
        U = W / np.where(self.roots > 0, self.roots, 1)[:, None]
        return np.column_stack([U, np.zeros(len(U))]) if self.solver.fit_intercept else U

    def weights(self, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """V and b."""
        V = self.roots[:, None] * U
        if not self.solver.fit_intercept:
            return V, self.target_mean
        V, ones = V[:, :-1], V[:, -1]
        b = V.sum(axis=0) / (ones.sum() or 1.0)  # without any sample all is 0
        return V - ones[:, None] * b, self.target_mean + b

    def without(self, U: np.ndarray, rows: np.ndarray) -> tuple[KernelSystem, np.ndarray]:
        """The system without some samples, and the U that is nearest to this one."""
        other, some = copy.copy(self), np.unique(self.places[rows])
        other.roots, other.B = self.roots.copy(), self.B.copy()
        other.roots[some], other.B[some] = 0, 0
        assert isinstance(self.preconditioner, Nystrom)  # the other has a closed form
        other.preconditioner, U = self.preconditioner.without(some, U)
        return other, U

    def leave_one_out(
        self, W: np.ndarray, b: np.ndarray, rows: np.ndarray, T: np.ndarray, mass: np.ndarray
    ) -> np.ndarray | None:
        """Outputs by the closed form t - V / diag((K + λ/D²)⁻¹), corrected for b.

        With s = (K + λ/D²)⁻¹ 1, an intercept b subtracts s sᵀ / 1ᵀs from that inverse.
        """
        if isinstance(self.preconditioner, Nystrom):
            return None
        some = self.places[rows]
        weightless = self.w[some] == 0
        diagonal = np.empty(len(some))
        for start in range(0, len(some), _ROWS_PER_BLOCK):
            part = some[start : start + _ROWS_PER_BLOCK]
            units = np.zeros((len(self.roots), len(part)))
            units[part, np.arange(len(part))] = 1
            diagonal[start : start + len(part)] = self.preconditioner.squares(units)
        diagonal *= self.w[some]
        if self.solver.fit_intercept:
            s = self.roots * self.preconditioner.solve(self.roots[:, None])[:, 0]
            rest = diagonal - s[some] ** 2 / s.sum()
            # Also of a sample that has all the weight.
            diagonal = np.maximum(rest, (1 - _MAX_LEVERAGE) * diagonal)
        outputs = self.T[some] - W[some] / np.where(weightless, 1, diagonal)[:, None]
        # Samples of weight 0 have not been trained on.
        outputs[weightless] = self.layer.matvec(self.X[rows[weightless]], W) + b
        return outputs


System = LeastSquares | KernelSystem


@stage("output training", "preconditioner")
def _preconditioner(system: System, most: int) -> Cholesky | Falkon | Nystrom:
    """The factor of the whole kernel if there is one, else the preconditioner of landmarks.

    The factor is tried if the solver's ``preconditioner`` (by default ``most``) is not less than
    the number of centers.
    """
    layer, m, wanted = system.layer, system.layer.centers.shape[0], system.solver.preconditioner
    if m <= (wanted or most):
        with suppress(np.linalg.LinAlgError):  # not positive definite in floating point
            return system.factorised()
    # Evenly spaced: as well mixed as the centers are.
    some = np.unique(np.linspace(0, m - 1, min(m, wanted or _N_LANDMARKS)).astype(np.intp))
    return system.nystrom(layer.activations(layer.centers[some]), some)
