"""One-vs-one: outputs of class pairs from their support vectors, votes, scores of classes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf._stages import staged
from gpurbf.backends.lattice import encode
from gpurbf.network.hidden import FORCED, Activation, HiddenLayer
from gpurbf.network.kernel_rows import as_integers, compact
from gpurbf.network.sparse_layer import SparseLayer

__all__ = ["SupportLayer", "class_scores", "pair_weights", "votes"]

# float32 sums are used where their rounding stays below this, a solver's default tolerance.
_TOLERANCE = 1e-3
# Below so many support vectors float64 takes no time either.
_MANY = 1000
_BYTES = 64 << 20


class SupportLayer:
    """The hidden layer whose centers are the support vectors V (n_SV, n); its outputs are weighted.

    Parameters
    ----------
    V : ndarray or CSR
    activation : Activation
    backend, precision : str
    """

    def __init__(self, V: Any, activation: Activation, backend: str, precision: str) -> None:
        self.V, self.activation = V, activation
        self.backend, self.precision = backend, precision
        compacted, self._units, self._lattice = compact(V, activation, precision)
        self._codes = None if self._lattice is None else compacted
        self._sparse = SparseLayer(V, activation) if sp.issparse(compacted) else None
        self._layers: dict[tuple[bool, str], HiddenLayer] = {}

    @staged("prepare", "lattice")
    def weighted(self, X: Any, W: np.ndarray) -> np.ndarray:
        """K(X, V) @ W, float64, shape (N, n_pairs), for W (n_SV, n_pairs)."""
        result = np.zeros((X.shape[0], W.shape[1]))
        if not len(W):
            return result
        if self._sparse is not None:
            return self._sparse.scores(X, W)
        rows = max(64, _BYTES // (8 * max(1, X.shape[1])))
        for start in range(0, X.shape[0], rows):
            part = X[start : start + rows]
            part = part.toarray() if sp.issparse(part) else np.ascontiguousarray(part)
            codes = None if self._lattice is None else encode(part, self._lattice)
            if codes is not None and self._lattice is not None:
                layer = self._layer(True, _dtype(W))
                part = as_integers(codes, self._lattice)
            else:
                layer = self._layer(False, "float64")
            result[start : start + rows] = layer.scores(part, W)
        return result

    def _layer(self, on_lattice: bool, dtype: str) -> HiddenLayer:
        key = on_lattice, dtype
        if key not in self._layers:
            forced = self.precision in FORCED
            self._layers[key] = HiddenLayer(
                self._codes if on_lattice else self.V,
                self._units if on_lattice else self.activation,
                backend=self.backend,
                precision=self.precision,
                dtype=None if forced else dtype,
            )
        return self._layers[key]


def _dtype(W: np.ndarray) -> str:
    """float32 for many support vectors if the sums do not suffer from it."""
    rounding = np.finfo(np.float32).eps / 2 * float(np.abs(W).sum(axis=0).max(initial=0.0))
    return "float32" if len(W) >= _MANY and rounding < _TOLERANCE else "float64"


@staged("prepare", "pair weights")
def pair_weights(dual_coef: np.ndarray, n_support: np.ndarray) -> np.ndarray:
    """W (n_SV, n_pairs) from LIBSVM's layout (n_classes - 1, n_SV) of the same numbers."""
    stops = np.cumsum(n_support)
    starts = stops - n_support
    W = np.zeros((dual_coef.shape[1], len(n_support) * (len(n_support) - 1) // 2))
    for p, (a, b) in enumerate(combinations(range(len(n_support)), 2)):
        of_a, of_b = slice(starts[a], stops[a]), slice(starts[b], stops[b])
        W[of_a, p] = dual_coef[b - 1, of_a]
        W[of_b, p] = dual_coef[a, of_b]
    return W


def votes(decisions: np.ndarray, n_classes: int) -> np.ndarray:
    """Number of pairs (N, n_classes) won: pair (a, b) goes to a if its output is above 0."""
    return _won(decisions > 0, n_classes)


def _won(by_first: np.ndarray, n_classes: int) -> np.ndarray:
    """Pairs won by each class where the first class of its pair wins what is true in by_first."""
    first, second = np.triu_indices(n_classes, 1)
    pairs = np.arange(len(first))
    change = np.zeros((len(pairs), n_classes), np.float32)  # sums of small integers are exact
    change[pairs, first], change[pairs, second] = 1, -1
    # A class is the second of as many pairs as there are classes before it.
    return (by_first.astype(np.float32) @ change).astype(np.int64) + np.arange(n_classes)


def class_scores(decisions: np.ndarray, n_classes: int) -> np.ndarray:
    """Votes plus the summed outputs squeezed into (-1/3, 1/3), as scikit-learn breaks ties.

    An output of exactly 0 is a vote for the first class of its pair here, as in scikit-learn's
    ``decision_function``, though not in its (LIBSVM's) ``predict``.
    """
    sums = np.zeros((len(decisions), n_classes))
    for p, (a, b) in enumerate(combinations(range(n_classes), 2)):
        sums[:, a] += decisions[:, p]
        sums[:, b] -= decisions[:, p]
    return _won(~(decisions < 0), n_classes) + sums / (3 * (np.abs(sums) + 1))
