"""The normal equations of all blocks: each adds its own, and a tree adds them up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import distributed
import numpy as np
from dask.sizeof import sizeof
from sklearn.utils import gen_batches

from gpurbf.backends.arrays import to_host
from gpurbf.dask.blocks import Blocks, Rows
from gpurbf.network.exact import exact_sum
from gpurbf.network.model import one_hot
from gpurbf.network.solvers import NormalEquations

__all__ = ["Summing"]

# Rows whose targets exist at a time, and sums that one task adds up.
_ROWS, _MERGED = 8192, 4


class Summing:
    """Sums over all blocks, on their way: who iterates over it hears of each block.

    Parameters
    ----------
    blocks : Blocks
    model : estimator
        The local twin, with its centers.
    alpha : float
        The least relative ridge that the sums are to be solved with; 0: no exact sums.
    """

    def __init__(self, blocks: Blocks, model: Any, alpha: float) -> None:
        n_classes = len(model.classes_)
        n_outputs = 1 if n_classes == 2 else n_classes
        normal = NormalEquations(len(model.centers_), n_outputs, alpha)
        normal.begin(model._layer(), blocks, 1.0, *_weights(blocks))
        work = _Sums(model, n_outputs, normal.shift, normal.grid)
        parts, tasks = blocks.each("hidden-layer", work), blocks.tasks
        if normal.grid is not None:
            # Exact sums may be added up in any order: first those that need not travel.
            parts = [parts[i] for i in blocks.together()]
        total = tasks.merged("hidden-layer", NormalEquations.__add__, parts, _MERGED)
        # Who waits for a block holds on to a word of it, not to its sums.
        done = tasks.each("progress", _done, [(part,) for part in parts])
        self._total, *self._done = tasks.start([total, *done])

    def __len__(self) -> int:
        return len(self._done)

    def __iter__(self) -> Iterator[Any]:
        return distributed.as_completed(self._done)

    def result(self) -> NormalEquations:
        """The sums of all blocks."""
        return self._total.result()


@dataclass(frozen=True)
class _Sums:
    """The sums of a block, on a shift and a grid that all blocks share."""

    model: Any
    n_outputs: int
    shift: Any
    grid: Any

    def __call__(self, rows: Rows, start: int) -> NormalEquations:
        model, layer = self.model, self.model._layer()
        normal = NormalEquations(len(model.centers_), self.n_outputs)
        normal.shift, normal.grid = self.shift, self.grid
        for batch in gen_batches(len(rows.X), _ROWS):
            some = rows.at(batch)
            normal.add(layer, some.X, one_hot(some.y, len(model.classes_)), some.weights)
        normal.G, normal.B, normal.layer = to_host(normal.G), to_host(normal.B), None
        return normal


@sizeof.register(NormalEquations)
def _size(normal: NormalEquations) -> int:
    """Bytes, by which Dask decides what to move and what to keep."""
    return normal.G.nbytes + normal.B.nbytes


def _done(normal: NormalEquations) -> None:
    """A block has been added."""


def _weights(blocks: Blocks) -> tuple[float, float]:
    """The largest and the mean weight of all rows."""
    if blocks.weights is None:
        return 1.0, 1.0
    largest, total = blocks.over_rows(_scale, _larger_and_sum, False, True, "weights")
    return float(largest), float(total / len(blocks))


def _scale(X: Any, y: None, weights: np.ndarray, first: int) -> tuple[Any, Any]:
    return weights.max(), exact_sum(weights)


def _larger_and_sum(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
    return max(a[0], b[0]), a[1] + b[1]
