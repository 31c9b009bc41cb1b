"""The order in which a pass sees the samples: drawn from their values, not from their places.

A shuffle by position would make the model depend on the order of the file, and a sample that is
repeated would not be where its weighted twin is. Sorted by a random hash of their values, samples
come in random order, the same one however they were stored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Order(NamedTuple):
    """How samples come.

    ``rows`` (N,) is the order in which outputs are trained; ``stream`` are those of them that the
    pass sees, ``weights`` theirs or None; ``keys`` (N,) the hashes by which a part is drawn.
    """

    rows: np.ndarray
    stream: np.ndarray
    weights: np.ndarray | None
    keys: np.ndarray


def as_given(keys: np.ndarray, weights: np.ndarray | None) -> Order:
    """All samples, in their own order."""
    rows = np.arange(len(keys))
    return Order(rows, rows, weights, keys)


def as_drawn(keys: np.ndarray, weights: np.ndarray | None, y: np.ndarray) -> Order:
    """The order of their keys; equal samples of a class (y) come once, with their weights' sum."""
    rows = np.lexsort((y, keys))
    new = (np.diff(keys[rows]) != 0) | (np.diff(y[rows]) != 0)
    first = np.flatnonzero(np.concatenate([[True], new]))
    w = np.ones(len(rows)) if weights is None else weights[rows]
    return Order(rows, rows[first], np.add.reduceat(w, first), keys)


def held_out(
    keys: np.ndarray, y: np.ndarray, weights: np.ndarray | None, fraction: float
) -> np.ndarray:
    """A mask of about `fraction` of each class's weight; equal samples stay on one side.

    At least one distinct sample of every class is left on the other side.
    """
    mask = np.zeros(len(keys), bool)
    for c in np.unique(y):
        members = np.flatnonzero(y == c)
        _, group = np.unique(keys[members], return_inverse=True)
        mass = np.bincount(group, None if weights is None else weights[members]).astype(float)
        out = np.cumsum(mass) - mass / 2 < fraction * mass.sum()
        out[-1] = False
        mask[members] = out[group]
    return mask
