"""RBFClassifier on a cluster: each block adds to HᵀH, the client solves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask.array as da
import distributed
import numpy as np
from sklearn.utils import gen_batches

from gpurbf.backends.arrays import to_host
from gpurbf.backends.threads import limited
from gpurbf.dask.blocks import Blocks, Rows
from gpurbf.dask.layer import check_rule
from gpurbf.dask.twin import ClassifierTwin, twin_of
from gpurbf.estimators import rbf
from gpurbf.estimators._callbacks import CallbackSupportMixin, steps, with_callbacks
from gpurbf.network.exact import exact_sum
from gpurbf.network.solvers import NormalEquations

__all__ = ["RBFClassifier"]


@twin_of(rbf.RBFClassifier)
class RBFClassifier(CallbackSupportMixin, ClassifierTwin):
    """:class:`gpurbf.RBFClassifier` for data on a Dask cluster: the same model, bit for bit.

    Parameters
    ----------
    **parameters
        Those of :class:`gpurbf.RBFClassifier`. Rules of centers are "random" and "stratified", or
        give an array; solvers those of sums, such as "ridge". A task takes `n_jobs` threads, by
        default one.
    client : distributed.Client, optional
        By default the one that is there.

    Notes
    -----
    Blocks stay on their workers. To the client come the centers, HᵀH and up to 2,000 samples by
    which probabilities are calibrated. Bits are those of the local fit where HᵀH is exact, see
    there; else the sums of blocks round in their own order.
    """

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RBFClassifier:
        """Choose the centers and train the outputs.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks
        y : dask array, dask series or list of delayed blocks
        sample_weight : dask array, dask series or list of delayed blocks, optional

        Returns
        -------
        self : RBFClassifier
        """
        model = self._new_model()
        check_rule(model)
        solver = model._solver()
        if solver.needs != "sums":
            raise ValueError(
                f"solver={model.solver!r} has to see the samples one by one: on a cluster use "
                "'ridge', or another of sums over the samples."
            )
        blocks = Blocks.of(self, model, X, y, sample_weight)
        model.classes_ = blocks.classes
        with limited(self.n_jobs), blocks.finite(model):
            model._choose_layer(blocks, blocks, blocks.weights)
            blocks = blocks.with_class_weights(model.class_weight)
            normal = model._new_normal(solver)
            normal.begin(model._layer(), blocks, 1.0, *_weights(blocks))
            work = _Sums(model, solver, normal.shift, normal.grid)
            parts = blocks.each("hidden-layer", work)
            total = blocks.tasks.merged("hidden-layer", NormalEquations.__add__, parts)
            # Who waits for a block holds on to a word of it, not to its sums.
            done = blocks.tasks.each("progress", _done, [(part,) for part in parts])
            result, *waiting = blocks.tasks.start([total, *done])
            come = distributed.as_completed(waiting)
            for _ in steps(self, come, len(parts), X, y, "hidden layer", stops=False):
                pass
            normal = result.result()
            sample = blocks.take(rbf.calibration_rows(len(blocks)))
            model._solve(solver, normal, sample.X, sample.y, sample.weights, keep=False)
        self.model_ = model
        return self

    def predict_proba(self, X: Any) -> da.Array:
        """The classes' probabilities, block by block when they are computed.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks

        Returns
        -------
        probabilities : dask array of shape (n_samples, n_classes)
        """
        return self._lazily("predict_proba", X)


@dataclass(frozen=True)
class _Sums:
    """The sums of a block, on a shift and a grid that all blocks share."""

    model: rbf.RBFClassifier
    solver: Any
    shift: np.ndarray
    grid: Any

    def __call__(self, rows: Rows, start: int) -> NormalEquations:
        normal = self.model._new_normal(self.solver)
        normal.shift, normal.grid = self.shift, self.grid
        assert rows.y is not None
        for batch in gen_batches(len(rows.X), rbf._ROWS_A_STEP):
            self.model._add(normal, rows.X[batch], rows.y, rows.weights, batch)
        normal.G, normal.B, normal.layer = to_host(normal.G), to_host(normal.B), None
        return normal


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
