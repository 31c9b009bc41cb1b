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
from gpurbf.dask.blocks import Blocks, Reader
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
        # Exact sums may be added up in any order: first those that need not travel.
        order = range(len(blocks.parts)) if normal.grid is None else blocks.together()
        work = _Sums(blocks.reader, model, n_outputs, normal.shift, normal.grid)
        tasks, own = blocks.tasks, [blocks.parts[i] for i in order]
        size = _at_once(blocks, len(model.centers_))
        groups = [tuple(own[i : i + size]) for i in range(0, len(own), size)]
        parts = tasks.each("hidden-layer", work, groups)
        total = tasks.merged("hidden-layer", _added, parts, _MERGED)
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


def _at_once(blocks: Blocks, m: int) -> int:
    """How many blocks a task adds up: no more bytes than its sums have, three tasks a thread."""
    n_bytes = blocks.shape[0] * blocks.shape[1] * blocks.dtype.itemsize / len(blocks.parts)
    n_threads = sum(blocks.tasks.client.nthreads().values())
    return max(1, min(int(8 * m * m / n_bytes), len(blocks.parts) // max(1, 3 * n_threads)))


@dataclass(frozen=True)
class _Sums:
    """The sums of some blocks, on a shift and a grid that all blocks share."""

    reader: Reader
    model: Any
    n_outputs: int
    shift: Any
    grid: Any

    def __call__(self, *blocks: tuple[Any, ...]) -> NormalEquations:
        model, layer = self.model, self.model._layer()
        normal = NormalEquations(len(model.centers_), self.n_outputs)
        normal.shift, normal.grid = self.shift, self.grid
        for _, *block in blocks:
            rows = self.reader.rows(*block)
            for batch in gen_batches(len(rows.X), _ROWS):
                some = rows.at(batch)
                normal.add(layer, some.X, one_hot(some.y, len(model.classes_)), some.weights)
        normal.G, normal.B, normal.layer = to_host(normal.G), to_host(normal.B), None
        return normal


def _added(first: NormalEquations, *others: NormalEquations) -> NormalEquations:
    total = first.copy()
    for other in others:
        total += other
    return total


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
