"""FSVC's outputs: votes, or what a solver makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gpurbf.backends.arrays import mirror, to_host
from gpurbf.network.layer import Layer
from gpurbf.network.solvers import NormalEquations

__all__ = ["grown", "iterates"]


def iterates(
    solver: Any,
    layer: Layer,
    X: Any,
    T: np.ndarray,
    weights: np.ndarray | None,
    start: np.ndarray,
    order: np.ndarray,
) -> Iterable[np.ndarray]:
    """The output weights W (m, k) after each epoch of a solver that has such, else those it finds.

    See :mod:`gpurbf.network.solvers`; `start` (m, k) are the votes, or what was learned before.
    """
    if solver.needs == "sums":
        normal = NormalEquations(*start.shape)
        normal.add(layer, X, T, weights)
        return [solver.solve(normal).W]
    if hasattr(solver, "epochs"):
        return solver.epochs(layer, X, T, weights, start=start, order=order)
    return [solver.train(layer, X, T, weights, start=start, order=order)]


def grown(normal: NormalEquations, m: int, places: np.ndarray) -> NormalEquations:
    """The sums for m centers, of which those at `places` are old: new ones were silent before."""
    larger = NormalEquations(m, len(normal.targets))
    G = to_host(normal.G)
    mirror(G)  # places need not be in order
    larger.G[np.ix_(places, places)] = G
    larger.B[places] = to_host(normal.B)
    larger.targets, larger.weight = normal.targets, normal.weight
    larger.shift = np.zeros(m)
    larger.shift[places] = normal.shift
    return larger
