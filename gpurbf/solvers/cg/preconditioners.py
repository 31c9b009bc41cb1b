"""Preconditioners of `CG`: Cholesky factors of the kernel, and Nystroem landmarks.

Each has two methods, and gives float64: ``solve(V)`` is P⁻¹ V, shape (m, k); ``squares(V)``, not of
`Nystrom`, is vᵀ P⁻¹ v for the columns of V (m, r).
"""

from __future__ import annotations

import copy
from contextlib import suppress

import numpy as np
from scipy.linalg import inv

from gpurbf.layer import Layer
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.linalg import (
    add_gram,
    cholesky,
    dot,
    eigh,
    factorize,
    mirror,
    panel_width,
    product,
    solve_panels,
    solve_triangular,
)
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import single_threaded_blas
from gpurbf.solvers.cg.stored_h import StoredH

# Columns of the kernel that are multiplied at a time.
_COLUMNS_PER_BLOCK = 4096
# Number of values of δ that are tried, each ten times the one before.
_N_TRIES = 3


class Cholesky:
    """The inverse of D K D + δI, for the kernel K (m, m) of the centers and D = diag(``roots``).

    Its panels (`gpurbf.runtime.linalg`) take little more than m²/2 numbers of the dtype.

    Raises
    ------
    numpy.linalg.LinAlgError
        If K is not positive definite, as for some profiles.
    """

    def __init__(
        self, layer: Layer, delta: float, dtype: np.dtype, roots: np.ndarray | None = None
    ) -> None:
        self.m, self.dtype, self.panels = layer.centers.shape[0], dtype, list[np.ndarray]()
        with stage("output training", "preconditioner"):
            for _ in range(_N_TRIES):
                self._fill(layer, delta, roots)
                count(operations=self.m**3 / 3, kind=dtype.name, nbytes=self.m**2 * dtype.itemsize)
                with suppress(np.linalg.LinAlgError):
                    factorize(self.panels)
                    self.delta = delta
                    return
                delta *= 10
        raise np.linalg.LinAlgError("the kernel of the centers is not positive definite")

    def _fill(self, layer: Layer, delta: float, roots: np.ndarray | None) -> None:
        """Fill the panels of the matrix, which is symmetric: columns are computed as rows."""
        self.panels.clear()
        w = panel_width(self.m)
        for top in range(0, self.m, w):
            H = to_host(layer.activations(layer.centers[top : top + w]))
            rows = H[:, top:].astype(self.dtype)
            if roots is not None:
                rows *= roots[top : top + w, None]
                rows *= roots[top:]
            rows[np.diag_indices(len(rows))] += delta
            self.panels.append(rows.T)

    def solve(self, V: np.ndarray) -> np.ndarray:
        """(D K D + δI)⁻¹ V, up to the rounding of its dtype."""
        with stage("output training", "preconditioner"):
            X = self._forward(V)
            count(operations=1.0 * self.m * X.size, kind=self.dtype.name)
            solve_panels(self.panels, X, transposed=True)
            return X.astype(np.float64)

    def squares(self, V: np.ndarray) -> np.ndarray:
        """The squared norms of the columns of L⁻¹ V."""
        half = self._forward(V)
        return np.einsum("ij,ij->j", half, half, dtype=np.float64)

    def _forward(self, V: np.ndarray) -> np.ndarray:
        """L⁻¹ V for the factor L."""
        count(operations=1.0 * self.m * V.size, kind=self.dtype.name)
        X = np.array(V, self.dtype, order="F")
        solve_panels(self.panels, X)
        return X


class Falkon:
    """An approximate inverse of HᵀDH + λI, for m centers that are distributed like the samples.

    Then HᵀDH is about n/m K², for the kernel K (m, m) of the centers and the total weight n of the
    samples, and

        P⁻¹ = m/n (K + δI)⁻²,   δ² = λ m/n

    as in Falkon (Rudi, Carratino, Rosasco, 2017), whose penalty differs. If H is ``centred``, the
    mean of K's rows is subtracted as well. With q = (K + δI)⁻¹ K 1/√m, whose norm is below 1, this
    gives

        P⁻¹ = m/n (K + δI)⁻¹ (I + q qᵀ / (1 - |q|²)) (K + δI)⁻¹

    It raises the errors of `Cholesky`.
    """

    def __init__(self, layer: Layer, ridge: float, weight: float, centred: bool) -> None:
        m = layer.centers.shape[0]
        self.factor = m / weight
        self.root = Cholesky(layer, float(np.sqrt(ridge * self.factor)), layer.dtype)
        self.q, self.denominator = np.zeros(m), 1.0
        if centred:
            delta = self.root.delta
            lost = delta * self.root.solve(np.ones((m, 1)))[:, 0]
            self.q = (1 - lost) / np.sqrt(m)
            # 1 - |q|², which would lose all digits if subtracted; K's eigenvalues are below its
            # trace m.
            self.denominator = max(float(dot(lost, 2 - lost)) / m, delta / (m + delta))

    def solve(self, V: np.ndarray) -> np.ndarray:
        """P⁻¹ V, shape (m, k)."""
        half = self.root.solve(V)
        half += np.outer(self.q, dot(self.q, half) / self.denominator)
        return self.factor * self.root.solve(half)

    def squares(self, V: np.ndarray) -> np.ndarray:
        """vᵀ P⁻¹ v for the columns of V (m, r)."""
        half = self.root.solve(V)
        centred = dot(self.q, half) ** 2 / self.denominator
        return self.factor * (np.einsum("ij,ij->j", half, half) + centred)


class Nystrom:
    """An inverse of A + λI, for A (m, m) that is known on the span of a few rows of the kernel.

    With E (s, m) the activations of s of the centers, E Eᵀ = L Lᵀ and U = Eᵀ L⁻ᵀ, an orthonormal
    basis of their span, A is approximated by U B Uᵀ there and by its mean diagonal elsewhere:

        P⁻¹ = U (B + λI)⁻¹ Uᵀ + (I - U Uᵀ) / τ,   τ = λ + (tr A - tr B) / (m - s)

    This is the randomized Nyström preconditioner of Frangella, Tropp and Udell (2023), with columns
    of a kernel matrix instead of random ones, as in Falkon (Rudi, Carratino, Rosasco, 2017).

    Parameters
    ----------
    E : ndarray of shape (s, m)
    own : ndarray of shape (s,)
        Numbers of these centers.
    roots : ndarray of shape (m,)
        Factors of the columns of E.
    middle : ndarray of shape (s, s) or None
        G such that A ≈ Eᵀ K⁺ G K⁺ E, for the square K (s, s) of E; None: K itself.
    ridge, trace : float
        λ and the trace of A.
    """

    def __init__(
        self,
        E: np.ndarray,
        own: np.ndarray,
        roots: np.ndarray,
        middle: np.ndarray | None,
        ridge: float,
        trace: float,
    ) -> None:
        s, m = E.shape
        self.roots = roots
        K = E[:, own].astype(np.float64)
        self.L = _orthogonal(E, roots)
        with stage("output training", "preconditioner"):
            count(operations=12.0 * s**3, kind="float64", nbytes=8 * 6 * s * s)
            # On one thread of BLAS: where K is nearly singular, rounding decides the vectors.
            with single_threaded_blas():
                values, vectors = eigh((K + K.T) / 2)
            known = np.abs(values) > np.finfo(E.dtype).eps * s**0.5 * np.abs(values).max()
            values, vectors = values[known], vectors[:, known]
            half = product(np.triu(self.L.T), vectors) / values
            if middle is None or not known.any():  # K may be 0, as of one center with thin-plate
                B = product(half * values, half.T)
            else:
                inner = product(product(vectors.T, middle), vectors)
                B = product(product(half, inner), half.T)
            self.rest = ridge + max(0.0, trace - float(np.trace(B))) / max(1, m - s)
            B[np.diag_indices(s)] += ridge
            with single_threaded_blas():
                self.middle = inv((B + B.T) / 2, overwrite_a=True, check_finite=False)
            self.middle[np.diag_indices(s)] -= 1 / self.rest
        self.rows = StoredH(s, np.zeros(m), None, False)
        self.rows.add(E, 0)

    def solve(self, V: np.ndarray) -> np.ndarray:
        """P⁻¹ V, shape (m, k)."""
        Y = solve_triangular(self.L, self.rows.matvec(V * self.roots[:, None]))
        return V / self.rest + self._from_basis(Y)

    def without(self, some: np.ndarray, V: np.ndarray) -> tuple[Nystrom, np.ndarray]:
        """P⁻¹ with the unknowns ``some`` held at 0, and V with these unknowns set to 0.

        With C the block of P⁻¹ for these unknowns, P⁻¹ of the others is that of all minus P⁻¹ C⁻¹
        P⁻¹. The V nearest to the given one, in the norm Vᵀ P V, is V - P⁻¹ C⁻¹ V.
        """
        ((_, E),) = self.rows.blocks
        Y = solve_triangular(self.L, E[:, some] * self.roots[some])
        spread = product(self.middle, Y)
        C = product(Y.T, spread)
        C[np.diag_indices(len(some))] += 1 / self.rest
        L = cholesky(C)
        half = solve_triangular(L, spread.T)
        held = solve_triangular(L, solve_triangular(L, V[some]), trans=1)
        other, V = copy.copy(self), V - self._from_basis(product(Y, held))
        other.middle, other.roots = self.middle - product(half.T, half), self.roots.copy()
        other.roots[some], V[some] = 0, 0
        return other, V

    def _from_basis(self, Y: np.ndarray) -> np.ndarray:
        """U ((B + λI)⁻¹ - I / τ) Y, shape (m, k)."""
        Y = solve_triangular(self.L, product(self.middle, Y), trans=1)
        return self.rows.rmatvec(Y) * self.roots[:, None]


def _orthogonal(E: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """The Cholesky factor of E diag(roots²) Eᵀ in float64, with numbers of no meaning above it."""
    s, m = E.shape
    G = np.zeros((s, s))
    for left in range(0, m, _COLUMNS_PER_BLOCK):
        part = E[:, left : left + _COLUMNS_PER_BLOCK].astype(np.float64)
        part *= roots[left : left + _COLUMNS_PER_BLOCK]
        add_gram(part, G)
    count(operations=s * s * m, kind="float64", nbytes=E.nbytes)
    mirror(G)
    jitter = 4 * np.finfo(np.float64).eps * (np.trace(G) or 1.0)  # E may be 0
    diagonal = G.diagonal() + jitter
    np.fill_diagonal(G, diagonal)
    try:
        return cholesky(G)
    except np.linalg.LinAlgError:  # many equal centers
        np.fill_diagonal(G, diagonal + s * jitter)
        return cholesky(G)
