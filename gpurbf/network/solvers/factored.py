"""Preconditioners of `CG` that have the kernel of all centers: its Cholesky factor."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from gpurbf._stages import count, stage
from gpurbf.backends.arrays import to_host
from gpurbf.network.layer import Layer

__all__ = ["Direct", "Falkon"]

_ROWS = 256
# How often a ten times larger δ is tried.
_RETRIES = 3
# Of a penalty beside the rounding of the trace.
_ROUNDING = 4


class Cholesky:
    """A factor of D K D + δI, for the kernel K (m, m) of the centers and D = diag(``roots``).

    It takes m²/2 numbers of the dtype, in LAPACK's rectangular full packed format.

    Raises
    ------
    numpy.linalg.LinAlgError
        If K is not positive definite: there are profiles that are not.
    """

    def __init__(
        self, layer: Layer, delta: float, dtype: np.dtype, roots: np.ndarray | None = None
    ) -> None:
        self.m, self.roots = len(layer.centers), roots
        self.n = self.m + self.m % 2
        self.packed = np.empty((self.n // 2, self.n + 1), dtype)
        factorize, self._solve, self._forward = scipy.linalg.get_lapack_funcs(
            ("pftrf", "pftrs", "tfsm"), (self.packed,)
        )
        with stage("output training", "preconditioner"):
            count(operations=self.m**3 / 3, kind=dtype.name, nbytes=self.packed.nbytes)
            for _ in range(_RETRIES):
                self._fill(layer, delta)
                factor, info = factorize(
                    self.n, self.packed.reshape(-1), uplo="L", overwrite_a=True
                )
                if info == 0:
                    self.packed = factor
                    return
                delta *= 10
        raise np.linalg.LinAlgError("the kernel of the centers is not positive definite")

    def _fill(self, layer: Layer, delta: float) -> None:
        """The matrix as LAPACK's lower triangle in that format; a last row of I if m is odd.

        With k the half of m, row j of ``packed`` is K[j, j:] from column 1 + j on, and its first
        columns are K[k + j, k : k + j + 1].
        """
        packed, half, roots = self.packed, self.n // 2, self.roots
        H = np.zeros((_ROWS, self.n), packed.dtype)
        packed[-1, :half] = 0
        for start in range(0, self.m, _ROWS):
            rows = slice(start, min(start + _ROWS, self.m))
            part = H[: rows.stop - start, : self.m]
            part[:] = to_host(layer.outputs(layer.centers[rows]))
            if roots is not None:
                part *= roots[rows, None]
                part *= roots
            for j in range(start, rows.stop):
                row = H[j - start]
                row[j] += delta
                if j < half:
                    packed[j, 1 + j :] = row[j:]
                else:
                    packed[j - half, : j - half + 1] = row[half : j + 1]
        if self.n > self.m:
            packed[-1, half - 1] = 1

    def solve(self, V: np.ndarray) -> np.ndarray:
        """(D K D + δI)⁻¹ V, in its dtype."""
        with stage("output training", "preconditioner"):
            count(operations=2.0 * self.m**2 * V.shape[1], kind=self.packed.dtype.name)
            padded = self._padded(V)
            return self._solve(self.n, self.packed, padded, uplo="L", overwrite_b=True)[0][: self.m]

    def forward(self, V: np.ndarray) -> np.ndarray:
        """L⁻¹ V for the factor L."""
        count(operations=1.0 * self.m**2 * V.shape[1], kind=self.packed.dtype.name)
        return self._forward(1.0, self.packed, self._padded(V), uplo="L", overwrite_b=True)[
            : self.m
        ]

    def _padded(self, V: np.ndarray) -> np.ndarray:
        padded = np.zeros((self.n, V.shape[1]), self.packed.dtype, order="F")
        padded[: self.m] = V
        return padded


class Falkon:
    """An inverse of HᵀDH + λI, where the m centers are to each other as the samples are to them.

    Then HᵀDH is about n/m K², for the kernel K (m, m) of the centers and the samples' weight n, and

        P⁻¹ = m/n (K + δI)⁻²,   δ² = λ m/n

    as in Falkon (Rudi, Carratino, Rosasco, 2017), whose penalty is another. It raises what
    `Cholesky` raises.
    """

    def __init__(self, layer: Layer, ridge: float, weight: float) -> None:
        self.factor = len(layer.centers) / weight
        self.root = Cholesky(layer, float(np.sqrt(ridge * self.factor)), layer.dtype)

    def solve(self, V: np.ndarray) -> np.ndarray:
        """P⁻¹ V, shape (m, k)."""
        return self.factor * self.root.solve(self.root.solve(V)).astype(np.float64)

    def squares(self, V: np.ndarray) -> np.ndarray:
        """vᵀ P⁻¹ v for the columns of V (m, r)."""
        half = self.root.solve(V)
        return self.factor * np.einsum("ij,ij->j", half, half, dtype=np.float64)


class Direct:
    """The inverse of D K D + λI itself, as well as the dtype can tell it.

    That is the layer's, or float64 where the rounding of a matrix of that ``trace`` would be felt.
    It raises what `Cholesky` raises.
    """

    def __init__(self, layer: Layer, ridge: float, roots: np.ndarray, trace: float) -> None:
        fits = ridge >= _ROUNDING * np.finfo(layer.dtype).eps * trace
        dtype = layer.dtype if fits else np.dtype(np.float64)
        self.whole = Cholesky(layer, ridge, dtype, roots)

    def solve(self, V: np.ndarray) -> np.ndarray:
        """P⁻¹ V, shape (m, k)."""
        return self.whole.solve(V).astype(np.float64)

    def diagonal(self, some: np.ndarray) -> np.ndarray:
        """The elements of P⁻¹'s diagonal with those numbers."""
        found = np.empty(len(some))
        for start in range(0, len(some), _ROWS):
            part = some[start : start + _ROWS]
            units = np.zeros((self.whole.m, len(part)))
            units[part, np.arange(len(part))] = 1
            half = self.whole.forward(units)
            found[start : start + _ROWS] = np.einsum("ij,ij->j", half, half, dtype=np.float64)
        return found
