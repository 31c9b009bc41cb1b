"""H for products with a few vectors: kept if the memory budget has room for it, else made anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpurbf._config import get_config
from gpurbf.backends.arrays import to_host
from gpurbf.backends.kept import Kept
from gpurbf.network.layer import Layer

__all__ = ["Anew", "rows_of", "tiles"]

_ROWS = 1024
# Parts of the budget that H may take, and a tile of it.
_KEPT, _TILE = 3 / 4, 1 / 16


class Anew:
    """H less a shift, computed for every product; see `Kept`."""

    def __init__(self, layer: Layer, X: Any, shift: np.ndarray) -> None:
        self.layer, self.X, self.shift = layer, X, shift

    def times(self, V: np.ndarray) -> np.ndarray:
        """(H - shift) V, shape (N, k), for V (m, k)."""
        return to_host(self.layer.scores(self.X, V)) - self.shift @ V

    symmetric = times

    def transposed(self, U: np.ndarray) -> np.ndarray:
        """(H - shift)ᵀ U, shape (m, k), for U (N, k)."""
        layer = self.layer
        with layer.working():
            Z = layer.xp.zeros((len(self.shift), U.shape[1]))
            layer.normal(self.X, U, None, self.shift, out=(None, Z))
            return to_host(Z)

    def squares(self) -> np.ndarray:
        """The sum of squares of every row of H - shift, (N,)."""
        shift = self.shift.astype(self.layer.dtype)
        parts = []
        for _, H in tiles(self.layer, self.X):
            H -= shift
            parts.append(np.einsum("ij,ij->i", H, H, dtype=np.float64))
        return np.concatenate(parts)

    def columns(self, which: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Those columns of H - shift in float64, part by part."""
        for rows, H in tiles(self.layer, self.X):
            yield rows, H[:, which].astype(np.float64) - self.shift[which]


def tiles(layer: Layer, X: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of H on the host, each tile in the memory of the one before."""
    N, m = X.shape[0], len(layer.centers)
    budget = _TILE * get_config()["memory"] * 2**20
    H = np.empty(
        (int(max(16, min(_ROWS, N, budget // (m * layer.dtype.itemsize)))), m), layer.dtype
    )
    for start in range(0, N, len(H)):
        rows = slice(start, min(start + len(H), N))
        part = H[: rows.stop - start]
        if layer.xp is np:
            layer.outputs(X[rows], out=part)
        else:
            part[:] = to_host(layer.outputs(X[rows]))
        yield rows, part


def rows_of(
    layer: Layer, X: Any, shift: np.ndarray, step: float | None, *, triangle: bool = False
) -> tuple[Kept | Anew, str]:
    """H less the shift for X (N, n), in multiples of the step where there is one; and how.

    On a device, which computes H faster than a host reads it, it is made anew.
    """
    N, m = X.shape[0], len(layer.centers)
    size = (2 if step else layer.dtype.itemsize) * N * m / (2 if triangle else 1) / 2**20
    kind = "16 bits" if step else str(layer.dtype)
    if layer.xp is not np:
        return Anew(layer, X, shift), "H made anew in every iteration"
    if size > _KEPT * get_config()["memory"]:
        advice = f"config_context(memory={size / _KEPT:.0f}) keeps it in {kind}"
        return Anew(layer, X, shift), f"H made anew in every iteration: {advice}"
    kept = Kept(shift, step, triangle)
    if all(kept.add(H) for _, H in tiles(layer, X)):
        return kept, f"H kept in {kind}"
    return rows_of(layer, X, shift, None, triangle=triangle)  # beyond 16 bits
