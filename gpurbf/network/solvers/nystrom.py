"""The preconditioner of `CG`: the system as a few of its centers see it."""

from __future__ import annotations

import copy

import numpy as np
from scipy.linalg import cho_solve, inv, solve_triangular

from gpurbf._stages import count, stage
from gpurbf.backends.arrays import factorizations
from gpurbf.backends.kept import Kept

__all__ = ["Nystrom"]

_BLOCK = 4096


class Nystrom:
    """An inverse of A + λI, for A (m, m) that is known on the span of a few rows of the kernel.

    With E (s, m) the activations of s of the centers, E Eᵀ = L Lᵀ and U = Eᵀ L⁻ᵀ, an orthonormal
    basis of their span, A is taken as U B Uᵀ there and as its mean diagonal elsewhere:

        P⁻¹ = U (B + λI)⁻¹ Uᵀ + (I - U Uᵀ) / τ,   τ = λ + (tr A - tr B) / (m - s)

    This is the randomized Nyström preconditioner of Frangella, Tropp and Udell (2023), for columns
    of a kernel matrix in the place of random ones, as in Falkon (Rudi, Carratino, Rosasco, 2017).

    Parameters
    ----------
    E : ndarray of shape (s, m)
    own : ndarray of shape (s,)
        Which of the centers they are.
    roots : ndarray of shape (m,) or None
        What scales the columns of E; None: nothing.
    middle : ndarray of shape (s, s) or None
        G such that A ≈ Eᵀ K⁺ G K⁺ E, for the square K (s, s) of E; None: K itself.
    ridge, trace : float
        λ and the trace of A.
    """

    def __init__(
        self,
        E: np.ndarray,
        own: np.ndarray,
        roots: np.ndarray | None,
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
            values, vectors = factorizations(np).eigh((K + K.T) / 2)
            known = np.abs(values) > np.finfo(E.dtype).eps * s**0.5 * np.abs(values).max()
            half = (self.L.T @ vectors[:, known]) / values[known]
            if middle is None:
                B = (half * values[known]) @ half.T
            else:
                B = half @ (vectors[:, known].T @ middle @ vectors[:, known]) @ half.T
            rest = max(0.0, trace - float(np.trace(B))) / max(1, m - s)
            self.rest = ridge + rest
            B[np.diag_indices(s)] += ridge
            self.middle = inv((B + B.T) / 2, overwrite_a=True, check_finite=False)
            self.middle[np.diag_indices(s)] -= 1 / self.rest
        self.rows = Kept(np.zeros(m), None)
        self.rows.add(E)

    def solve(self, V: np.ndarray) -> np.ndarray:
        """P⁻¹ V, shape (m, k)."""
        scaled = V if self.roots is None else V * self.roots[:, None]
        return V / self.rest + self._from_basis(self._in_basis(self.rows.times(scaled)))

    def without(self, some: np.ndarray, V: np.ndarray) -> tuple[Nystrom, np.ndarray]:
        """P⁻¹ where those unknowns are held at 0, and what V becomes when they are.

        With C the square of P⁻¹ of them, P⁻¹ of the others is that of all less P⁻¹ C⁻¹ P⁻¹, and
        the V of the least Vᵀ P V beside the given one is V - P⁻¹ C⁻¹ V.
        """
        assert self.roots is not None
        (E,) = self.rows.blocks
        Y = self._in_basis(E[:, some] * self.roots[some])
        spread = self.middle @ Y
        C = Y.T @ spread
        C[np.diag_indices(len(some))] += 1 / self.rest
        L = np.linalg.cholesky(C)
        half = solve_triangular(L, spread.T, lower=True)
        other, V = copy.copy(self), V - self._from_basis(Y @ cho_solve((L, True), V[some]))
        other.middle, other.roots = self.middle - half.T @ half, self.roots.copy()
        other.roots[some], V[some] = 0, 0
        return other, V

    def _from_basis(self, Y: np.ndarray) -> np.ndarray:
        """U ((B + λI)⁻¹ - I / τ) Y, shape (m, k)."""
        Y = solve_triangular(self.L, self.middle @ Y, lower=True, trans=1)
        Y = self.rows.transposed(Y)
        return Y if self.roots is None else Y * self.roots[:, None]

    def _in_basis(self, Y: np.ndarray) -> np.ndarray:
        return solve_triangular(self.L, Y, lower=True)


def _orthogonal(E: np.ndarray, roots: np.ndarray | None) -> np.ndarray:
    """The Cholesky factor of E diag(roots²) Eᵀ in float64."""
    s, m = E.shape
    G = np.zeros((s, s))
    for left in range(0, m, _BLOCK):
        part = E[:, left : left + _BLOCK].astype(np.float64)
        if roots is not None:
            part *= roots[left : left + _BLOCK]
        G += part @ part.T
    count(operations=s * s * m, kind="float64", nbytes=E.nbytes)
    G[np.diag_indices(s)] += 4 * s * np.finfo(np.float64).eps * np.trace(G) / s
    return np.linalg.cholesky(G)
