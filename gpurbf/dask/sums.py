"""The normal equations of all blocks: tasks sum their blocks, and a tree adds the sums up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils import gen_batches

from gpurbf.dask.blocks import NO_ROWS, Blocks, in_order, joined, numbered
from gpurbf.estimators._validation import Rows
from gpurbf.runtime.arrays import to_host
from gpurbf.solvers.one_hot import TARGET_ROWS, one_hot
from gpurbf.solvers.ridge.normal_equations import NormalEquations

# How many sums, 8 m² bytes each for m centers, a task adds up: a worker may not hold more.
_FAN_IN = 2


def block_sums(
    blocks: Blocks,
    model: Any,
    normal: NormalEquations,
    sample: np.ndarray = NO_ROWS,
    watched: Callable[[Iterable[Any], int], Iterable[Any]] = lambda tasks, n_tasks: tasks,
) -> Rows:
    """Add all blocks to the sums; return some rows in the order in which they were given.

    Parameters
    ----------
    blocks : Blocks
    model : estimator
        The local one, with its centers.
    normal : NormalEquations
        Without rows yet; all blocks use its shift and grid.
    sample : ndarray of int
        Numbers of the rows that are returned, ascending.
    watched : callable
        Called with an iterator that waits for one task after the other, and the number of tasks;
        its result is iterated over instead.
    """
    # Exact sums are the same in any order. Others are made block by block, so that they do not
    # depend on which worker has a block.
    groups = blocks.one_by_one() if normal.grid is None else blocks.groups
    task = partial(_sums, model, normal.shift, normal.grid, sample)
    parts = blocks.each("hidden-layer", task, groups)
    totals = blocks.tasks.merged("hidden-layer", _added, parts, _FAN_IN)
    n_parts, futures = len(parts), blocks.tasks.start([*parts, *totals])
    done, totals = blocks.tasks.as_completed(futures[:n_parts]), futures[n_parts:]
    del futures  # no other reference is kept: a part is released as soon as it has been waited for
    for _ in watched(done, n_parts):
        pass
    samples = []
    for total in totals:  # one by one, as they are large
        part, rows = blocks.tasks.gathered(total)
        _add(normal, part)
        samples.append(rows)
    return in_order(samples)


def _sums(
    model: Any, shift: Any, grid: Any, sample: np.ndarray, blocks: Iterator[tuple[Rows, int]]
) -> tuple[NormalEquations, Rows]:
    """Sums of some blocks on a shift and a grid that all share, and the rows of the sample."""
    layer, k = model._layer(), len(model.classes_)
    normal, found = NormalEquations(1 if k == 2 else k, shift, grid), []
    for rows, first in blocks:
        found.append(numbered(sample, rows, first))
        for batch in gen_batches(len(rows.X), TARGET_ROWS):
            some = rows.at(batch)
            normal.add(layer, some.X, one_hot(some.y, k), some.weights)
    normal.G, normal.B, normal.layer = to_host(normal.G), to_host(normal.B), None
    return normal, joined(found)


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
