"""Samples that are left out to judge a fit, with their copies and the centers equal to them.

The closed forms for their outputs are `RidgeSolution.leave_one_out` and, for many penalties,
`RidgePath.leave_one_out`; `settled` tells whether more samples would change the choice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpurbf.centers import center_finder
from gpurbf.centers.sample import Distinct, Race
from gpurbf.data.hashes import finder, mix, row_hashes
from gpurbf.estimators._validation import Rows
from gpurbf.layer import activations
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.arrays import library, to_host
from gpurbf.solvers.ridge import OwnCenters
from gpurbf.solvers.ridge.normal_equations import NormalEquations

# For each copy of some samples: the number of its sample, and its weight. None: no copies, all
# weights 1.
Copies = tuple[np.ndarray, np.ndarray] | None


class LeftOut(NamedTuple):
    """Samples to be left out, with all that is needed of them after later batches.

    ``found`` is the result of the race that chose them, ``centers`` the number of the center equal
    to each (-1: none), ``H`` (N, m) their activations as they were added to the sums.
    """

    found: Distinct
    centers: np.ndarray
    H: Any

    def first(self, wanted: int) -> LeftOut:
        """As many of the first rows as wanted, and all other classes of the last sample."""
        n = self.found.whole(wanted)
        return LeftOut(self.found.at(slice(n)), self.centers[:n], self.H[:n])

    def merged(self, later: LeftOut, race: Race) -> LeftOut:
        """Merge with samples of later batches: the result is that of one race over all."""
        n = len(self.centers)
        places = np.arange(n), np.arange(n, n + len(later.centers))
        parts = [kept.found._replace(first=own) for kept, own in zip((self, later), places)]
        found = race.merged(*parts)
        centers, H = (np.concatenate(own) for own in zip(self[1:], later[1:]))
        # H of a sample that is in both is the mean, weighted by mass.
        both = finder(parts[0].keys)(parts[1].keys)
        a, b = both[both >= 0], n + np.flatnonzero(both >= 0)
        mass = np.concatenate([part.mass for part in parts])[:, None]
        H[a] += mass[b] / (mass[a] + mass[b]) * (H[b] - H[a])
        return LeftOut(found, centers[found.first], H[found.first])

    def own_centers(self, layer: HiddenLayer) -> OwnCenters:
        """Find the samples that are centers of the layer, and for each all centers equal to it."""
        return OwnCenters.of(layer, self.centers)


def leave_out(
    normal: NormalEquations, layer: HiddenLayer, found: Distinct, X: Any, copies: Copies
) -> LeftOut:
    """Make the `LeftOut` of the samples found, from their rows X and their copies."""
    with layer.allocator():
        H = normal.summed_copies(activations(layer, X), copies)
    if copies is not None:  # summed in the order of the rows, in whatever parts they came
        found = found._replace(mass=np.bincount(*copies, minlength=X.shape[0]))
    return LeftOut(found, center_finder(layer)(X), H)


def of_all_classes(found: Distinct, *values: Any) -> tuple[Any, ...]:
    """Means of values (n, ·) over the classes that each sample found is in, and its total weights.

    Samples are left out of all their classes: copies in others would pull the outputs towards
    these. Nor is H the same for all copies, if they have other weights and it is on a grid.
    """
    _, sample = np.unique(found.hashes, return_inverse=True)
    mass = np.bincount(sample, found.mass)
    if len(mass) == len(sample):
        return *values, found.mass
    share = found.mass / mass[sample]

    def mean(V: Any) -> Any:
        sums = np.zeros((len(mass), V.shape[1]))
        np.add.at(sums, sample, share[:, None] * to_host(V))
        return library(V).asarray(sums[sample])

    return *map(mean, values), mass[sample]


def copies_of(found: Distinct, rows: Rows) -> Copies:
    """The rows that are equal to samples found, and of the same class."""
    X, codes, weights, _ = rows
    if weights is None:
        return None
    own = weights[found.first]
    if (found.mass == own).all():  # each is the only copy
        return np.arange(len(own)), own
    keys = row_keys(X, codes)
    places = finder(keys[found.first])(keys)
    return places[places >= 0], weights[places >= 0]


def row_keys(X: Any, codes: np.ndarray) -> np.ndarray:
    """Keys of rows, which differ if the rows or their classes differ."""
    return mix(row_hashes(X, 0) ^ mix(codes.astype(np.uint64)))


def copies_within(copies: Copies, some: slice) -> Copies:
    """The copies of the samples in a slice, numbered from its start."""
    if copies is None:
        return None
    places, weights = copies
    own = (some.start <= places) & (places < some.stop)
    return places[own] - some.start, weights[own]
