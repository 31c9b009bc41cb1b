"""RBFLayer and RBFClassifier on a cluster: each block adds to HᵀH, the client solves."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from sklearn.utils import check_random_state

from gpurbf.centers.sample import Race
from gpurbf.dask.base import DaskClassifier, DaskEstimator
from gpurbf.dask.blocks import Blocks, in_order, joined
from gpurbf.dask.sums import block_sums
from gpurbf.data.exact_sums import exact_sum
from gpurbf.data.hashes import finder
from gpurbf.estimators import layer, rbf
from gpurbf.estimators._base import CallbackSupportMixin, steps, with_callbacks
from gpurbf.estimators._left_out import leave_out, row_keys
from gpurbf.estimators._rbf_outputs import compared_rows
from gpurbf.estimators._validation import Rows, check_layer_parameters, finite
from gpurbf.runtime.threads import limited


class RBFLayer(DaskEstimator, local=layer.RBFLayer):
    """:class:`gpurbf.RBFLayer` for data on a Dask cluster: the same centers, the same gamma.

    Parameters
    ----------
    **parameters
        Those of :class:`gpurbf.RBFLayer`; ``centers`` must be "random", "stratified" or an array.
    client : distributed.Client, optional
        By default the current client.
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> RBFLayer:
        """Choose the centers and gamma.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks
        y : dask array, dask series or list of delayed blocks, optional
        sample_weight : dask array, dask series or list of delayed blocks, optional

        Returns
        -------
        self : RBFLayer
        """
        model = self._new_model()
        y = y if isinstance(model.centers, str) else None
        blocks = Blocks(self, model, X, y, sample_weight, draw=center_draw(model, y))
        with finite(model, blocks):
            choose_layer(model, blocks)
        self.model_ = model
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> da.Array:
        """`fit`, then `transform` of the same samples.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks
        y : dask array, dask series or list of delayed blocks, optional
        sample_weight : dask array, dask series or list of delayed blocks, optional

        Returns
        -------
        H : dask array of shape (n_samples, m)
        """
        return self.fit(X, y, sample_weight).transform(X)

    def transform(self, X: Any) -> da.Array:
        """The activations H, computed lazily, block by block.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks

        Returns
        -------
        H : dask array of shape (n_samples, m)
        """
        return self._lazily("transform", X)


class RBFClassifier(CallbackSupportMixin, DaskClassifier, local=rbf.RBFClassifier):
    """:class:`gpurbf.RBFClassifier` for data on a Dask cluster: the same model.

    Parameters
    ----------
    **parameters
        Those of :class:`gpurbf.RBFClassifier`. ``centers`` must be "random", "stratified" or an
        array, and the solver must need only sums over the samples, such as "ridge". A task takes
        `n_jobs` threads, by default one.
    client : distributed.Client, optional
        By default the current client.

    Notes
    -----
    Blocks stay on their workers. The client receives 40 bytes of each distinct sample and, to draw
    m centers from b blocks of k classes, about m + 4√(b k m) samples, HᵀH, and up to 864 samples to
    calibrate probabilities and to check rounding. The model is bit for bit that of the local fit if
    HᵀH is exact, see :class:`gpurbf.RBFClassifier`; otherwise sums are rounded in the order of the
    blocks.
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
        _solver(model, 0)  # refused before any work
        draw = center_draw(model, y)
        blocks = Blocks(self, model, X, y, sample_weight, draw=draw, asked=[rbf.CALIBRATION])
        model.classes_ = blocks.classes
        with limited(self.n_jobs), finite(model, blocks):
            weighted = blocks.with_class_weights(model.class_weight)
            choose_layer(model, blocks)
            solver = _solver(model, model.centers_.shape[0])
            # The samples that calibrate probabilities, and the largest and the mean weight of all.
            found, scale, n_rows = blocks.known[rbf.CALIBRATION], (1.0, 1.0), blocks.shape[0]
            if sample_weight is not None or model.class_weight is not None:
                found, largest, total = weighted.over_rows(_sample_and_scale, _merged, "weights")
                scale = float(largest), float(total / n_rows)
            compared = np.arange(*compared_rows(n_rows).indices(n_rows))
            sample = np.union1d(found.first, compared)
            normal = model._begin(getattr(solver, "alpha", 0.0), weighted, scale)
            watched = partial(steps, self, X=X, y=y, name="hidden layer", stops=False)
            rows = block_sums(weighted, model, normal, sample, watched)
            some = rows.at(np.searchsorted(sample, compared))
            if model._coarse(normal, blocks, some):
                model._widen()
                normal = model._begin(0.0, weighted, scale)
                block_sums(weighted, model, normal)
            some = rows.at(np.searchsorted(sample, found.first))
            copies = None if some.weights is None else (np.arange(len(some.y)), some.weights)
            if some.weights is not None and (found.mass != some.weights).any():
                tasks = weighted.each("copies", partial(_copies, row_keys(some.X, some.y)))
                copied = in_order(weighted.tasks.results(tasks))
                copies = copied.X, copied.weights
            left_out = leave_out(normal, model._layer(), found, some.X, copies)
            model._solve(solver, normal, left_out, some.X, keep=False)
        self.model_ = model
        return self

    def predict_proba(self, X: Any) -> da.Array:
        """The classes' probabilities, computed lazily, block by block.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks

        Returns
        -------
        probabilities : dask array of shape (n_samples, n_classes)
        """
        return self._lazily("predict_proba", X)

    def predict_log_proba(self, X: Any) -> da.Array:
        """The logarithms of the probabilities, computed lazily, block by block.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks

        Returns
        -------
        logarithms : dask array of shape (n_samples, n_classes)
        """
        return self._lazily("predict_log_proba", X)


def choose_layer(model: Any, blocks: Blocks) -> None:
    """Choose the layer; centers are numbered as all given samples, including those of weight 0."""
    # Blocks hold their labels and weights: only whether there are labels counts here.
    model._choose_layer(Rows(blocks, blocks.classes, None))
    if blocks.n_given > blocks.shape[0] and hasattr(model, "center_indices_"):
        model.center_indices_ = blocks.take(model.center_indices_).places


def center_draw(model: Any, y: Any) -> Race | None:
    """The race that will draw the model's centers, for `Blocks`.

    None if they are given, or if something else is drawn first. Rules that would have to see all
    samples in one place are refused here.
    """
    rule, n = model.centers, model.n_centers
    if isinstance(n, str) and n == "all":
        raise ValueError(
            "n_centers='all' brings all samples to one place: on a cluster give a number, or fit "
            "the local estimator."
        )
    if not isinstance(rule, str):
        return None
    check_layer_parameters(model, 0)  # how many inputs there are is for centers that are given
    if rule not in ("random", "stratified"):
        raise ValueError(
            f"centers={rule!r} has to see all samples in one place: on a cluster use 'random' or "
            "'stratified', or give the centers as an array, for example those of a local fit on a "
            "part of the samples."
        )
    if model.gamma == "median":  # draws some samples first
        return None
    by_class = rule == "stratified" and y is not None
    return Race.drawn(copy.deepcopy(check_random_state(model.random_state)), by_class)


def _solver(model: Any, n_centers: int) -> Any:
    """The model's solver for that many centers, which must need only sums over the samples."""
    solver = model._solver(n_centers)
    if solver.needs != "sums":
        raise ValueError(
            f"solver={model.solver!r} has to see the samples one by one: on a cluster use "
            "'ridge', or a solver of yours that needs sums."
        )
    return solver


def _sample_and_scale(X: Any, y: Any, weights: np.ndarray, first: int) -> tuple[Any, ...]:
    """Samples for calibration, the largest weight and the sum of all, of some rows."""
    return rbf.CALIBRATION(X, y, weights, first), weights.max(), exact_sum(weights)


def _copies(keys: np.ndarray, blocks: Iterator[tuple[Rows, Any]]) -> Rows:
    """The rows of some blocks that have one of the keys; instead of X, the places of their keys."""
    find = finder(keys)
    rows = joined(rows._replace(X=find(row_keys(rows.X, rows.y))) for rows, _ in blocks)
    return rows.at(rows.X >= 0)


def _merged(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return rbf.CALIBRATION.merged(a[0], b[0]), max(a[1], b[1]), a[2] + b[2]
