"""Samples that are left out of a fit to judge it: with their copies and the centers that they are.

The closed forms for their outputs are `RidgeSolution.leave_one_out` and, for many penalties,
`RidgePath.leave_one_out`; how little other samples would change, `settled`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpurbf.centers import center_finder
from gpurbf.centers.sample import Distinct, Race
from gpurbf.data.hashes import finder, mix, row_hashes
from gpurbf.layer import activations
from gpurbf.layer.layer import HiddenLayer
from gpurbf.solvers.ridge import OwnCenters
from gpurbf.solvers.ridge.normal_equations import NormalEquations

# Of each copy of some samples which of them it is, and its weight; None: no copies, of weight 1.
Copies = tuple[np.ndarray, np.ndarray] | None


class LeftOut(NamedTuple):
    """Samples to be left out, and all that will be asked of them when others have come, too.

    ``found`` is the result of the race that chose them, ``centers`` the center that each of them is
    or -1, ``H`` (N, m) their activations as they were summed.
    """

    found: Distinct
    centers: np.ndarray
    H: Any

    def first(self, n: int) -> LeftOut:
        """The first n of them."""
        return LeftOut(self.found.at(slice(n)), self.centers[:n], self.H[:n])

    def merged(self, later: LeftOut, race: Race) -> LeftOut:
        """Merge with samples of later batches: the result is that of one race over all."""
        n = len(self.centers)
        places = np.arange(n), np.arange(n, n + len(later.centers))
        parts = [kept.found._replace(first=own) for kept, own in zip((self, later), places)]
        found = race.merged(*parts)
        centers, H = (np.concatenate(own) for own in zip(self[1:], later[1:]))
        # Of a sample that is in both the mean, by their weights.
        both = finder(parts[0].keys)(parts[1].keys)
        a, b = both[both >= 0], n + np.flatnonzero(both >= 0)
        mass = np.concatenate([part.mass for part in parts])[:, None]
        H[a] += mass[b] / (mass[a] + mass[b]) * (H[b] - H[a])
        return LeftOut(found, centers[found.first], H[found.first])

    def own_centers(self, layer: HiddenLayer) -> OwnCenters:
        """Which of them are centers of the layer, whose centers these are."""
        rows = np.flatnonzero(self.centers >= 0)
        equal = center_finder(layer)(layer.sparse_centers)
        units = equal[:, None] == self.centers[rows]
        return OwnCenters(rows, units.astype(np.float64))


def leave_out(
    normal: NormalEquations, layer: HiddenLayer, found: Distinct, X: Any, copies: Copies
) -> LeftOut:
    """Keep what leaving out the samples found takes: rows X of them, and their copies."""
    with layer.allocator():
        H = normal.summed_copies(activations(layer, X), copies)
    if copies is not None:  # added up in the order of the rows, wherever parts of them were found
        found = found._replace(mass=np.bincount(*copies, minlength=X.shape[0]))
    return LeftOut(found, center_finder(layer)(X), H)


def copies_of(found: Distinct, X: Any, codes: np.ndarray, weights: np.ndarray | None) -> Copies:
    """The rows of X that are those found, of their classes."""
    if weights is None:
        return None
    own = weights[found.first]
    if (found.mass == own).all():  # each is the only one
        return np.arange(len(own)), own
    keys = row_keys(X, codes)
    places = finder(keys[found.first])(keys)
    return places[places >= 0], weights[places >= 0]


def row_keys(X: Any, codes: np.ndarray) -> np.ndarray:
    """Numbers by which rows that are not equal, or not of one class, are told apart."""
    return mix(row_hashes(X, 0) ^ mix(codes.astype(np.uint64)))


def copies_within(copies: Copies, some: slice) -> Copies:
    """Those of some of the samples, by their places there."""
    if copies is None:
        return None
    places, weights = copies
    own = (some.start <= places) & (places < some.stop)
    return places[own] - some.start, weights[own]
