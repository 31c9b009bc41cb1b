"""The `numba` backend's layer of samples and centers that are rows of one array, not copied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpurbf.backends import Activation, Indexed, numba_, weighted
from gpurbf.backends.terms import ALL

__all__ = ["INDEXED"]


def like(X: np.ndarray, activation: Activation, dtype: Any) -> numba_.PackedCenters:
    """What `prepare` makes operands of."""
    return numba_.prepare(X[:1], activation, dtype, None, among=X)


def prepare(
    operand: numba_.PackedCenters, X: np.ndarray, chosen: np.ndarray
) -> numba_.PackedCenters:
    """The operand with the real numbers X[chosen] for centers, shifted as its own."""
    from gpurbf.kernels import packing, products
    from gpurbf.kernels.tiles import LANES

    part = operand.parts[0]
    kernel, old = part.kernel, part.centers
    n_panels = products.padded(len(chosen), LANES * kernel.strip) // LANES
    panels = packing.aligned(n_panels * LANES * kernel.width, old.panels.dtype)
    terms = np.empty(n_panels * LANES, old.terms.dtype)
    X = numba_.taken(X, operand.exact)
    packing.pack_chosen(
        X, chosen, old.kept, old.shift, kernel.blank, kernel.word, old.quadratic, panels, terms
    )
    centers = old._replace(panels=panels, m=len(chosen), terms=terms)
    return replace(operand, parts=(part._replace(centers=centers),), m=len(chosen))


def outputs(
    operand: numba_.PackedCenters,
    X: np.ndarray,
    chosen: np.ndarray,
    out: np.ndarray,
    places: np.ndarray | None = None,
) -> None:
    """H of X[chosen], written into `out`, or into those rows of it."""
    if len(chosen):
        store = weighted.consumer(
            out.dtype, "store", out=out, places=ALL if places is None else places
        )
        numba_.run(operand, operand.parts[0], numba_.taken(X, operand.exact), store, chosen)


INDEXED = Indexed(like, prepare, outputs)
