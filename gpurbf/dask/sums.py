"""The normal equations of all blocks: tasks sum their blocks, and a tree adds the sums up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import distributed
import numpy as np
from sklearn.utils import gen_batches

from gpurbf.dask.blocks import Blocks, by_block, in_order, joined
from gpurbf.estimators._validation import Rows
from gpurbf.runtime.arrays import to_host
from gpurbf.solvers.one_hot import one_hot
from gpurbf.solvers.ridge.normal_equations import NormalEquations

# Rows whose targets are in memory at a time.
_ROWS = 8192
# How many sums, 8 m² bytes each for m centers, a task adds up: a worker may not hold more.
_FAN_IN = 2
_NO_ROWS = np.empty(0, np.intp)


class BlockSums:
    """Sums over all blocks, which are being computed; iterating gives each task when it is done.

    Parameters
    ----------
    blocks : Blocks
    model : estimator
        The local one, with its centers.
    normal : NormalEquations
        Begun, but without rows yet; all blocks use its shift and grid.
    sample : ndarray of int
        Numbers of rows that are returned with the sums.
    """

    def __init__(
        self, blocks: Blocks, model: Any, normal: NormalEquations, sample: np.ndarray = _NO_ROWS
    ) -> None:
        # Exact sums are the same in any order. Others are made block by block, so that they do not
        # depend on which worker has a block.
        groups = blocks.one_by_one() if normal.grid is None else blocks.groups
        places = by_block(sample, blocks.starts)
        given = {i: places.get(i, _NO_ROWS) for group in groups for i in group}
        task = partial(_sums, model, len(normal.targets), normal.shift, normal.grid)
        parts = blocks.each("hidden-layer", task, groups, given)
        totals = blocks.tasks.merged("hidden-layer", _added, parts, _FAN_IN)
        futures = blocks.tasks.start([*parts, *totals])
        self._tasks, self._normal, self._n_parts = blocks.tasks, normal, len(parts)
        self._totals = futures[len(parts) :]
        # No other reference is kept, so a part is released as soon as it has been waited for.
        self._done = distributed.as_completed(futures[: len(parts)])

    def __len__(self) -> int:
        return self._n_parts

    def __iter__(self) -> Iterator[Any]:
        return self._done

    def result(self) -> tuple[NormalEquations, Rows]:
        """The sums of all blocks, and the sample in the order in which its rows were given."""
        for _ in self._done:
            pass
        normal, samples = self._normal, []
        for total in self._totals:  # one by one, as they are large
            part, rows = self._tasks.gathered(total)
            _add(normal, part)
            samples.append(rows)
        return normal, in_order(samples)


def _sums(
    model: Any,
    n_outputs: int,
    shift: Any,
    grid: Any,
    blocks: Iterator[tuple[Rows, int, np.ndarray]],
) -> tuple[NormalEquations, Rows]:
    """Sums of some blocks on a shift and a grid that all share, and the rows of the sample."""
    layer, normal = model._layer(), NormalEquations(model.centers_.shape[0], n_outputs)
    normal.shift, normal.grid = shift, grid
    sample = []
    for rows, _, places in blocks:
        sample.append(rows.at(places))
        for batch in gen_batches(len(rows.X), _ROWS):
            some = rows.at(batch)
            normal.add(layer, some.X, one_hot(some.y, len(model.classes_)), some.weights)
    normal.G, normal.B, normal.layer = to_host(normal.G), to_host(normal.B), None
    return normal, joined(sample)


def _added(*parts: tuple[NormalEquations, Rows]) -> tuple[NormalEquations, Rows]:
    """Sums of several tasks as one, and their samples."""
    (first, *others), samples = zip(*parts)
    total = first.copy()  # results of tasks may be asked for again
    for other in others:
        _add(total, other)
    return total, joined(samples)


def _add(total: NormalEquations, part: NormalEquations) -> None:
    """Add sums on the same shift and grid."""
    total.G += part.G
    total.B += part.B
    total.targets, total.weight = total.targets + part.targets, total.weight + part.weight
    total.n_rows += part.n_rows
