"""Methods that RBFClassifier and RBFClassifierCV share: sums over rows, outputs and labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpurbf.centers import center_finder
from gpurbf.centers.sample import Race
from gpurbf.data.exact_sums import exact_sum
from gpurbf.data.hashes import row_hashes
from gpurbf.data.row_blocks import read_ahead
from gpurbf.data.samples import FORCED
from gpurbf.estimators._base import LogProbaMixin, ScoreMixin, where_X_is
from gpurbf.estimators._fitted_layer import ChosenLayerMixin
from gpurbf.estimators._validation import Rows, check_finite
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.arrays import beside, chosen, library
from gpurbf.runtime.memory import check_result
from gpurbf.runtime.stages import stage
from gpurbf.runtime.threads import limited
from gpurbf.solvers.calibration import fit_temperature, probabilities
from gpurbf.solvers.one_hot import one_hot, winning_class
from gpurbf.solvers.ridge.fixed_point import fixed_point
from gpurbf.solvers.ridge.normal_equations import NormalEquations

# Maximum number of rows whose H is compared with H in float64, see `compared_rows`.
_ROWS_COMPARED = 64


class RBFOutputsMixin(LogProbaMixin, ScoreMixin, ChosenLayerMixin):
    """Linear outputs of a chosen layer: the sums for training, calibration and predictions."""

    # A parameter, and what fit sets.
    n_jobs: int | None
    classes_: np.ndarray

    def _begin(
        self, alpha: float, X: Any, weights: np.ndarray | tuple[float, float] | None
    ) -> NormalEquations:
        """New sums, to be solved with penalty ``alpha`` or a larger one; 0: H is not rounded.

        ``weights`` are the weights of all samples, or their maximum and their mean.
        """
        if weights is None:
            weights = 1.0, 1.0
        elif not isinstance(weights, tuple):
            weights = float(weights.max()), float(exact_sum(weights) / len(weights))
        k, found = len(self.classes_), fixed_point(self._layer(), X, alpha, *weights)
        normal = NormalEquations(1 if k == 2 else k, *found, alpha)
        if normal.no_grid(self._layer()):
            self._widen()
            return self._begin(0.0, X, weights)
        return normal

    def _coarse(self, normal: NormalEquations, X: Any, some: Rows) -> bool:
        """Whether the sums of X must be made again in float64; never if the precision is forced.

        ``some`` are the `compared_rows` of X.
        """
        if self.precision in FORCED:
            return False
        layer, m, all_summed = self._layer(), self.centers_.shape[0], normal.n_rows == X.shape[0]
        if normal.grid is not None or layer.dtype == np.float32:
            if normal.n_rows <= m or (all_summed and no_more_samples(X, some.X, layer)):
                return True
        # Codes have exact distances on every backend.
        double = layer.in_float64(None if layer.quantization and layer.xp is np else "numpy")
        return normal.coarse(layer, double, some.X, some.weights)

    def _widen(self) -> None:
        """Let the layer compute in float64, in predictions too."""
        self._keep_layer(self._layer().in_float64())

    def _checked_sums(
        self,
        normal: NormalEquations,
        rows: Rows,
        batches: list[slice],
        before: NormalEquations | None = None,
    ) -> NormalEquations:
        """The sums of these batches, made again in float64 if rounding would matter.

        ``before`` are the sums that the batches were added to. They need not be made again: their
        rounding was small compared with HᵀH then, and HᵀH only grows.
        """
        X, some = rows.X, rows.at(compared_rows(len(rows.y)))
        if self._coarse(normal, X, some):
            self._widen()
            if before is None:
                normal = self._begin(0.0, X, rows.weights)
            else:
                normal = before.copy()
                normal.grid, normal.alpha = None, 0.0  # later rows are added as they are
            for batch, part in read_ahead(X, batches):
                self._add(normal, part, rows, batch)
        return normal

    @stage("output training")
    def _add(self, normal: NormalEquations, X: Any, rows: Rows, batch: slice) -> None:
        """Add a batch of the rows, whose samples are X, to the normal equations."""
        T, weights = one_hot(rows.y[batch], len(self.classes_)), rows.weights
        normal.add(self._layer(), X, T, None if weights is None else weights[batch])

    @stage("back and evaluate", "temperature")
    def _keep_outputs(self, W: np.ndarray, b: np.ndarray, X: Any, *judged: Any) -> None:
        """Keep the output weights W (m, k) and the intercept b (k,), learned from data X.

        The temperature is fitted to what is ``judged``: scores, class numbers and weights of some
        samples.
        """
        self.coef_, self.intercept_ = np.ascontiguousarray(W.T), b
        check_finite(self, X, coef_=self.coef_, intercept_=b, outputs=judged[0])
        self.temperature_ = fit_temperature(*judged)
        self._report(self._layer())

    @stage("back and evaluate", "scores")
    def _scores(self, X: Any) -> np.ndarray:
        with limited(self.n_jobs):
            scores = self._layer().matvec(X, self.coef_.T) + beside(X, self.intercept_)
        check_finite(self, X, outputs=scores)
        return scores

    @where_X_is
    def decision_function(self, X: Any) -> np.ndarray:
        """The network's outputs.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)

        Returns
        -------
        scores : ndarray of shape (n_samples, n_classes) or (n_samples,)
            About 0 to 1 per class; for two classes one column of about -1 to 1, positive for the
            second class.
        """
        scores = self._scores(self._checked(X))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @where_X_is
    @stage("back and evaluate", "scores")
    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest output; the lowest of equal ones.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)

        Returns
        -------
        labels : ndarray of shape (n_samples,)
        """
        X = self._checked(X)
        winners = library(X).empty(X.shape[0], np.intp)
        # The outputs of all samples can be larger than the samples: only winners are kept.
        with limited(self.n_jobs):
            for rows, part in self._layer().matvec_blocks(X, self.coef_.T):
                with stage("back and evaluate", "labels"):
                    scores = part + beside(X, self.intercept_)
                    check_finite(self, X, outputs=scores)
                    winners[rows] = winning_class(scores)
        return chosen(self.classes_, winners)

    @where_X_is
    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities: the softmax of the outputs over ``temperature_``.

        For two classes there is one output; the probability of the second class is
        1 / (1 + exp(-output / temperature)).

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
        """
        X, cure = self._checked(X), "predict fewer samples at a time"
        if library(X) is np:
            shape = X.shape[0], len(self.classes_)
            check_result(shape, np.dtype(np.float64), "probabilities", cure, copies=2)
        return probabilities(self._scores(X), self.temperature_)


def compared_rows(n: int) -> slice:
    """Evenly spaced rows, out of n, whose H is compared with H in float64."""
    return slice(0, n, -(-n // _ROWS_COMPARED))


def no_more_samples(X: Any, some: Any, layer: HiddenLayer) -> bool:
    """Whether X has no more distinct samples than the layer has centers.

    All rows are looked at only if, of ``some``, two are equal or all are centers.

    With no more distinct samples than centers, only the penalty limits the weights in directions
    that no sample determines. The rounding differences between equal samples of different classes
    are then learned as if they were a feature. Leave-one-out outputs fail there too: what is left
    of a sample's activations without it is smaller than rounding.
    """
    hashes, m = row_hashes(some, 0), layer.centers.shape[0]
    if len(np.unique(hashes)) == len(hashes) and (center_finder(layer)(some) < 0).any():
        return False
    return len(Race(0, by_class=False, wanted=m + 1).over(X, None, None).first) <= m
