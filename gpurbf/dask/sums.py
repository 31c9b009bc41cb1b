"""The normal equations of all blocks: each adds its own, and a tree adds them up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import distributed
import numpy as np
from sklearn.utils import gen_batches

from gpurbf.dask.blocks import Blocks, at_home
from gpurbf.dask.rows import Rows
from gpurbf.data.exact_sums import exact_sum
from gpurbf.runtime.arrays import to_host
from gpurbf.solvers.one_hot import one_hot
from gpurbf.solvers.ridge.normal_equations import NormalEquations

# Rows whose targets exist at a time, those that a task adds up at the most where blocks are there,
# and sums that one task, or the client where they are of so few bytes, adds up.
_ROWS, _AT_ONCE, _MERGED, _SMALL = 8192, 1 << 15, 4, 1 << 27
# Rows of HᵀH that travel as an array.
_BAND = 256
_NO_ROWS = np.empty(0, np.intp)


class Summing:
    """Sums over all blocks, on their way: who iterates over it hears of each task of them.

    Parameters
    ----------
    blocks : Blocks
    model : estimator
        The local twin, with its centers.
    alpha : float
        The least relative ridge that the sums are to be solved with; 0: no exact sums.
    sample : ndarray of int
        Numbers of rows that come with the sums.
    """

    def __init__(
        self, blocks: Blocks, model: Any, alpha: float, sample: np.ndarray = _NO_ROWS
    ) -> None:
        if hasattr(model, "_begin"):
            normal = model._begin(alpha, blocks, _weights(blocks))
        else:  # FSVC, whose centers lie as its samples do
            k = len(model.classes_)
            normal = NormalEquations(len(model.centers_), 1 if k == 2 else k, alpha)
            normal.begin(model._layer(), blocks, 1.0, *_weights(blocks))
        work = _Sums(model, len(normal.targets), normal.shift, normal.grid)
        tasks = blocks.tasks
        own, _ = at_home(sample, blocks.starts)
        own = {i: own.get(i, _NO_ROWS) for i in range(len(blocks.parts))}
        parts = blocks.each("hidden-layer", work, _groups(blocks, normal), own)
        few = 4 * len(normal.G) ** 2 <= _SMALL
        totals = tasks.merged("hidden-layer", _added, parts, _MERGED, left=_MERGED if few else 1)
        futures = tasks.start([*parts, *totals])
        self._tasks, self._normal, self._n_rows = tasks, normal, len(blocks)
        self._totals, self._n_parts = futures[len(parts) :], len(parts)
        del futures[len(parts) :]
        # Who waits for a part lets go of it at once.
        self._done = distributed.as_completed(futures)

    def __len__(self) -> int:
        return self._n_parts

    def __iter__(self) -> Iterator[Any]:
        return self._done

    def result(self) -> tuple[NormalEquations, Rows]:
        """The sums of all blocks, and the sample in the order in which its rows were given."""
        for _ in self._done:
            pass
        sums, normal = _added(*self._tasks.gathered(self._totals)), self._normal
        for i, band in enumerate(sums.bands):
            normal.G[i * _BAND : i * _BAND + len(band), : band.shape[1]] = band
        normal.B, normal.targets, normal.weight = sums.B, sums.targets, sums.weight
        normal.n_rows = self._n_rows
        return normal, Rows.in_order([sums.sample])


def _groups(blocks: Blocks, normal: NormalEquations) -> list[list[int]]:
    """Blocks by task.

    Exact sums may be added up in any order: first those that need not travel. Of blocks to be
    computed a task holds no more bytes than its sums have, and each thread has three tasks.
    """
    n_blocks, m = len(blocks.parts), len(normal.G)
    n_bytes = len(blocks) * blocks.shape[1] * blocks.dtype.itemsize / n_blocks
    most = max(1, min(int(8 * m * m / n_bytes), n_blocks // (3 * blocks.homes.n_threads)))
    if normal.grid is None:
        return [list(range(i, min(i + most, n_blocks))) for i in range(0, n_blocks, most)]
    return blocks.homes.groups(max(1, _AT_ONCE * n_blocks // len(blocks)), most)


class _Some(NamedTuple):
    """The sums of some blocks; of HᵀH the lower triangle, by bands of rows."""

    bands: list[np.ndarray]
    B: np.ndarray
    targets: np.ndarray
    weight: Any
    sample: Rows

    @classmethod
    def of(cls, normal: NormalEquations, sample: Rows) -> _Some:
        """Parts of the sums and of the rows that travel to the client."""
        G, starts = to_host(normal.G), range(0, len(normal.G), _BAND)
        bands = [G[i : i + _BAND, : i + _BAND].copy() for i in starts]
        return cls(bands, to_host(normal.B), normal.targets, normal.weight, sample)


@dataclass(frozen=True)
class _Sums:
    """The sums of some blocks, on a shift and a grid that all blocks share."""

    model: Any
    n_outputs: int
    shift: Any
    grid: Any

    def __call__(self, looked: Iterator[tuple[Rows, int, np.ndarray]]) -> _Some:
        model, layer = self.model, self.model._layer()
        normal = NormalEquations(len(model.centers_), self.n_outputs)
        normal.shift, normal.grid = self.shift, self.grid
        sample = []
        for rows, _, own in looked:
            sample.append(rows.at(own))
            for batch in gen_batches(len(rows.X), _ROWS):
                some = rows.at(batch)
                normal.add(layer, some.X, one_hot(some.y, len(model.classes_)), some.weights)
        return _Some.of(normal, Rows.joined(sample))


def _added(*parts: _Some) -> _Some:
    bands, *others, samples = zip(*parts)
    B, targets, weight = map(_sum, others)
    return _Some([_sum(own) for own in zip(*bands)], B, targets, weight, Rows.joined(samples))


def _sum(values: tuple[Any, ...]) -> Any:
    first, *others = values
    total = first + others[0] if others else first
    for other in others[1:]:
        total += other
    return total


def _weights(blocks: Blocks) -> tuple[float, float]:
    """The largest and the mean weight of all rows."""
    if blocks.weights is None:
        return 1.0, 1.0
    largest, total = blocks.over_rows(*SCALE, False, True, "weights")
    return float(largest), float(total / len(blocks))


def _scale(X: Any, y: Any, weights: np.ndarray, first: int) -> tuple[Any, Any]:
    return weights.max(), exact_sum(weights)


def _larger_and_sum(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
    return max(a[0], b[0]), a[1] + b[1]


# What sums ask of weights, for `Blocks.ask`.
SCALE = _scale, _larger_and_sum
