"""RBFClassifier on a cluster: each block adds to HᵀH, the client solves."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from gpurbf.dask.blocks import Blocks
from gpurbf.dask.layer import check_rule, race_ahead, winners
from gpurbf.dask.sums import SCALE, Summing
from gpurbf.dask.twin import ClassifierTwin, twin_of
from gpurbf.estimators import rbf
from gpurbf.estimators._base import CallbackSupportMixin, steps, with_callbacks
from gpurbf.runtime.threads import limited


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
    Blocks stay on their workers. To the client come the centers, 40 bytes of each distinct sample
    by which they are drawn, HᵀH, and up to 1,000 samples by which probabilities are calibrated.
    Bits are those of the local fit where HᵀH is exact, see there; else the sums of blocks round in
    their own order.
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
        _solver(model, 0)  # before any work
        blocks = Blocks.of(
            self,
            model,
            X,
            y,
            sample_weight,
            race=race_ahead(model),
            winners=winners(model),
            sample=rbf.CALIBRATION,
        )
        model.classes_ = blocks.classes
        with limited(self.n_jobs), blocks.finite(model):
            weighted = blocks.with_class_weights(model.class_weight)
            model._choose_layer(blocks, blocks, blocks.weights)
            solver = _solver(model, len(model.centers_))
            if weighted is not blocks:  # the look has known other weights
                weighted.ask((rbf.CALIBRATION, rbf.CALIBRATION.merged), SCALE)
            found = rbf.CALIBRATION.over(weighted, weighted, weighted.weights)
            sample = np.sort(found.first)
            sums = Summing(weighted, model, getattr(solver, "alpha", 0.0), sample)
            for _ in steps(self, sums, len(sums), X, y, "hidden layer", stops=False):
                pass
            normal, some = sums.result()
            if model._coarse(normal, some.X, some.weights):
                model._widen()
                normal, some = Summing(weighted, model, 0.0, sample).result()
            some = some.at(np.searchsorted(sample, found.first))
            left_out = model._to_leave_out(normal, found, some.X, some.weights)
            model._solve(solver, normal, left_out, some.X, keep=False)
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


def _solver(model: Any, n_centers: int) -> Any:
    """The model's solver, of sums over the samples, for so many centers."""
    solver = model._solver(n_centers)
    if solver.needs != "sums":
        raise ValueError(
            f"solver={model.solver!r} has to see the samples one by one: on a cluster use "
            "'ridge', or another of sums over the samples."
        )
    return solver
