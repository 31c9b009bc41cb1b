"""The preconditioner of `CG`: the system as a few of its centers see it."""

from __future__ import annotations

import numpy as np
import scipy.linalg

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
            self.middle = scipy.linalg.inv((B + B.T) / 2, overwrite_a=True, check_finite=False)
            self.middle[np.diag_indices(s)] -= 1 / self.rest
        self.rows = Kept(np.zeros(m), None)
        self.rows.add(E)

    def solve(self, V: np.ndarray) -> np.ndarray:
        """P⁻¹ V, shape (m, k)."""
        Y = self.coordinates(V)
        Y = scipy.linalg.solve_triangular(self.L, self.middle @ Y, lower=True, trans=1)
        Y = self.rows.transposed(Y)
        if self.roots is not None:
            Y *= self.roots[:, None]
        return V / self.rest + Y

    def squares(self, V: np.ndarray) -> np.ndarray:
        """vᵀ P⁻¹ v for the columns of V (m, r)."""
        return self._forms(np.einsum("ij,ij->j", V, V), self.coordinates(V))

    def diagonal(self, some: np.ndarray) -> np.ndarray:
        """The elements of P⁻¹'s diagonal with those numbers."""
        (E,) = self.rows.blocks
        columns = E[:, some].astype(np.float64)
        if self.roots is not None:
            columns *= self.roots[some]
        return self._forms(np.ones(len(some)), self._in_basis(columns))

    def _forms(self, squares: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """vᵀ P⁻¹ v for vectors with these sums of squares and coordinates Y (s, r)."""
        return squares / self.rest + np.einsum("ij,ij->j", Y, self.middle @ Y)

    def coordinates(self, V: np.ndarray) -> np.ndarray:
        """Uᵀ V, shape (s, k)."""
        V = V if self.roots is None else V * self.roots[:, None]
        return self._in_basis(self.rows.times(V))

    def _in_basis(self, Y: np.ndarray) -> np.ndarray:
        return scipy.linalg.solve_triangular(self.L, Y, lower=True)


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
