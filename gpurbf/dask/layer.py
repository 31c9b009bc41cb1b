"""RBFLayer on a cluster."""

from __future__ import annotations

import copy
from typing import Any

import dask.array as da
import numpy as np
from sklearn.utils import check_random_state

from gpurbf.centers import COUNTS
from gpurbf.centers.sample import Race
from gpurbf.dask.base import DaskEstimator, parameters_of
from gpurbf.dask.blocks import Blocks
from gpurbf.estimators import layer


@parameters_of(layer.RBFLayer)
class RBFLayer(DaskEstimator):
    """:class:`gpurbf.RBFLayer` for data on a Dask cluster: the same centers, the same gamma.

    Parameters
    ----------
    **parameters
        Those of :class:`gpurbf.RBFLayer`; rules of centers are "random" and "stratified", or give
        an array.
    client : distributed.Client, optional
        By default the one that is there.
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
        asked, n_centers = center_draw(model, y)
        blocks = Blocks.scanned(self, model, X, y, sample_weight, asked=asked, n_centers=n_centers)
        with blocks.finite(model):
            model._choose_layer(blocks, None if y is None else blocks, blocks.weights)
            if blocks.n_given > len(blocks) and hasattr(model, "center_indices_"):
                model.center_indices_ = blocks.take(model.center_indices_).places
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
        """The activations H, block by block when they are computed.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks

        Returns
        -------
        H : dask array of shape (n_samples, m)
        """
        return self._lazily("transform", X)


def center_draw(model: Any, y: Any) -> tuple[tuple[Race, ...], int | str]:
    """The race by which the model will draw its centers, and how many, for `Blocks.scanned`.

    There is none where something else is drawn first, or will be refused. Rules that would have to
    see all samples in one place are refused here.
    """
    rule, n = model.centers, model.n_centers
    if isinstance(n, str) and n == "all":
        raise ValueError(
            "n_centers='all' brings all samples to one place: on a cluster give a number, or fit "
            "the local estimator."
        )
    if not isinstance(rule, str):
        return (), 0
    if rule not in ("random", "stratified"):
        raise ValueError(
            f"centers={rule!r} has to see all samples in one place: on a cluster use 'random' or "
            "'stratified', or give the centers as an array, for example those of a local fit on a "
            "part of the samples."
        )
    by_class = rule == "stratified" and y is not None
    known = n in COUNTS if isinstance(n, str) else isinstance(n, (int, np.integer)) and n > 0
    if not known or np.array_equal(model.gamma, "median"):
        return (), 0
    return (Race.drawn(copy.deepcopy(check_random_state(model.random_state)), by_class),), n
