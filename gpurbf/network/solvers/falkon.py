"""The preconditioner of `CG` for centers that are some of the samples: the kernel among them."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from gpurbf._stages import count, stage
from gpurbf.backends.arrays import to_host
from gpurbf.network.layer import Layer

__all__ = ["Falkon"]

_ROWS = 256
# How often a ten times larger δ is tried.
_RETRIES = 3


class Falkon:
    """An inverse of HᵀDH + λI, where the m centers are to each other as the samples are to them.

    Then HᵀDH is about n/m K², for the kernel K (m, m) of the centers and the samples' weight n, and

        P⁻¹ = m/n (K + δI)⁻²,   δ² = λ m/n

    as in Falkon (Rudi, Carratino, Rosasco, 2017), whose penalty is another. The Cholesky factor of
    K + δI takes m²/2 numbers of the layer's dtype, in LAPACK's rectangular full packed format.

    Raises
    ------
    numpy.linalg.LinAlgError
        If K is not positive definite: there are profiles that are not.
    """

    def __init__(self, layer: Layer, ridge: float, weight: float) -> None:
        self.m = len(layer.centers)
        self.factor = self.m / weight
        self.n = self.m + self.m % 2
        self.packed = np.empty((self.n // 2, self.n + 1), layer.dtype)
        self._factorize, self._solve = scipy.linalg.get_lapack_funcs(
            ("pftrf", "pftrs"), (self.packed,)
        )
        delta = float(np.sqrt(ridge * self.factor))
        with stage("output training", "preconditioner"):
            count(operations=self.m**3 / 3, kind=layer.dtype.name, nbytes=self.packed.nbytes)
            for _ in range(_RETRIES):
                self._fill(layer, delta)
                factor, info = self._factorize(
                    self.n, self.packed.reshape(-1), uplo="L", overwrite_a=True
                )
                if info == 0:
                    self.packed = factor
                    return
                delta *= 10
        raise np.linalg.LinAlgError("the kernel of the centers is not positive definite")

    def _fill(self, layer: Layer, delta: float) -> None:
        """K + δI as LAPACK's lower triangle in that format; a last row of the identity if m is odd.

        With k the half of m, row j of ``packed`` is K[j, j:] from column 1 + j on, and its first
        columns are K[k + j, k : k + j + 1].
        """
        packed, half = self.packed, self.n // 2
        H = np.zeros((_ROWS, self.n), layer.dtype)
        packed[-1, :half] = 0
        for start in range(0, self.m, _ROWS):
            rows = slice(start, min(start + _ROWS, self.m))
            H[: rows.stop - start, : self.m] = to_host(layer.outputs(layer.centers[rows]))
            for j in range(start, rows.stop):
                row = H[j - start]
                row[j] += delta
                if j < half:
                    packed[j, 1 + j :] = row[j:]
                else:
                    packed[j - half, : j - half + 1] = row[half : j + 1]
        if self.n > self.m:
            packed[-1, half - 1] = 1

    def _once(self, V: np.ndarray) -> np.ndarray:
        """(K + δI)⁻¹ V."""
        padded = np.zeros((self.n, V.shape[1]), self.packed.dtype, order="F")
        padded[: self.m] = V
        return self._solve(self.n, self.packed, padded, uplo="L", overwrite_b=True)[0][: self.m]

    def solve(self, V: np.ndarray) -> np.ndarray:
        """P⁻¹ V, shape (m, k)."""
        with stage("output training", "preconditioner"):
            count(operations=4.0 * self.m**2 * V.shape[1], kind=self.packed.dtype.name)
            return self.factor * self._once(self._once(V)).astype(np.float64)

    def squares(self, V: np.ndarray) -> np.ndarray:
        """vᵀ P⁻¹ v for the columns of V (m, r)."""
        half = self._once(V)
        return self.factor * np.einsum("ij,ij->j", half, half, dtype=np.float64)
