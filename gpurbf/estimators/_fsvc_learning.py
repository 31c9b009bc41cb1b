"""What FSVC's public methods are made of: data, radii, centers, outputs, scores."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from gpurbf._stages import staged
from gpurbf._warnings import warn
from gpurbf.estimators._callbacks import steps
from gpurbf.estimators._fsvc_checks import class_votes
from gpurbf.estimators._validation import TrainingData, check_X, with_class_weights
from gpurbf.network.centers.fsvc import unit
from gpurbf.network.centers.sample import row_hashes
from gpurbf.network.fsvc import (
    Selection,
    distances,
    draw_sample,
    grown,
    nearest_centers,
    radius_for_ratio,
    train,
    tune,
)
from gpurbf.network.hidden import HiddenLayer
from gpurbf.network.model import one_hot
from gpurbf.network.order import drawn_order, sums_of_repeats, without_repeats
from gpurbf.network.radius import Trial, best
from gpurbf.network.solvers.ridge import NormalEquations


class FSVCLearningMixin:
    """Parameters and fitted attributes are FSVC's."""

    @staged("prepare", "order of the samples")
    def _learn(self: Any, data: TrainingData, goes_on: bool = False) -> None:
        """Learn from samples; a stream that `goes_on` comes in its own order."""
        X, codes, weights, self.classes_, n_samples, rows = data
        y = self.classes_[codes]
        first = not hasattr(self, "_selection")
        given, weights = (
            weights,
            with_class_weights(self.class_weight, self.classes_, codes, weights),
        )
        votes = class_votes(self.class_weight, self.classes_, codes, given)
        seen = 0 if first else self.n_samples_seen_
        rows = seen + np.arange(n_samples)[rows]
        self.n_samples_seen_ = seen + n_samples
        order = stream = np.arange(X.shape[0])
        stream_weights, keys = weights, np.empty(0, np.uint64)
        drawn = self.shuffle and not goes_on
        if drawn or (first and (self.radius == "auto" or self.eval_radius == "auto")):
            seed = check_random_state(self.random_state).randint(2**31 - 1)
            keys = row_hashes(X, seed)
        if drawn:
            order = drawn_order(keys, codes)
            stream = without_repeats(order, keys, codes)
            stream_weights = sums_of_repeats(order, keys, codes, weights)
        n_epochs = 1 if goes_on else self.n_epochs
        for stage in steps(self, ("radii", "centers", "outputs"), 3, X, y, "stage"):
            if stage == "radii" and first:
                n_epochs = self._find_radii(X, codes, stream, stream_weights, keys, n_epochs)
            elif stage == "centers":
                if first:
                    self._selection = self._new_selection(self.radius_)
                else:
                    self._selection = self._selection.copy()
                old = self._selection.feed(X, codes, stream, rows)
                self._keep_centers()
            elif stage == "outputs" and goes_on and self.solver == "ridge":
                self._add_to_sums(X, codes, weights, old)
            elif stage == "outputs":
                self._train(X, codes, weights, votes, order, old, n_epochs)

    def _new_selection(self: Any, radius: float) -> Selection:
        """An empty selection; its activities are in float64 or exact, whatever the precision."""
        layer = functools.partial(
            HiddenLayer,
            backend=self.backend,
            precision="auto" if self.precision in ("float32", "tf32") else self.precision,
            dtype=np.float64,
        )
        return Selection(
            self.selection,
            layer,
            self.kernel,
            self.metric,
            radius,
            self.overlap,
            len(self.classes_),
            self.max_centers,
        )

    @staged("prepare", "radius search")
    def _find_radii(
        self: Any,
        X: Any,
        codes: np.ndarray,
        stream: np.ndarray,
        weights: np.ndarray | None,
        keys: np.ndarray,
        n_epochs: int,
    ) -> int:
        """Set radius_ and eval_radius_; returns the number of epochs that a search found best."""
        options = {"backend": self.backend, "precision": self.precision}
        radius = None if self.radius == "auto" else self.radius
        if radius == "ratio":
            some = X[stream[:: max(1, len(stream) // 200)]]
            D = distances(some, some, self.metric, **options)
            radius = radius_for_ratio(X, codes, stream, self._new_selection, D)
        if radius is None or self.eval_radius == "auto":
            trials = tune(
                draw_sample(X, codes, weights, stream, keys[stream], self.metric, **options),
                len(stream),
                n_classes=len(self.classes_),
                kind=self.selection,
                kernel=self.kernel,
                overlap=self.overlap,
                solver=self.solver,
                max_centers=self.max_centers,
                radius=radius,
                eval_radius=self.eval_radius,
                learning_rate=self.learning_rate,
                n_epochs=n_epochs,
                alpha=self.alpha,
            )
            columns = zip(*trials, strict=True)
            self.radius_path_ = dict(zip(Trial._fields, map(np.array, columns), strict=True))
            chosen = best(trials)
            radius, self.eval_radius_ = chosen.radius, chosen.eval_radius
            n_epochs = chosen.n_iter if self.solver == "lms" else n_epochs
        else:
            self.eval_radius_ = float(radius if self.eval_radius is None else self.eval_radius)
        self.radius_ = float(radius)
        return n_epochs

    @staged("prepare", "centers packed, norms")
    def _keep_centers(self: Any) -> None:
        """Fitted attributes of the centers, and their layer."""
        self.centers_ = self._selection.centers
        self.center_indices_ = self._selection.indices
        self._activation = unit(self.kernel, self.metric, self.eval_radius_)
        layer = HiddenLayer(
            self.centers_, self._activation, backend=self.backend, precision=self.precision
        )
        self._cache = (self._cache_key(), layer)

    @staged("output training")
    def _train(
        self: Any,
        X: Any,
        codes: np.ndarray,
        weights: np.ndarray | None,
        votes: np.ndarray,
        order: np.ndarray,
        old: np.ndarray,
        n_epochs: int,
    ) -> None:
        """Output weights; `old` are the places of the centers that had some before."""
        labels, n_classes = self._selection.labels, len(self.classes_)
        W = one_hot(labels, n_classes) * votes[labels, None]
        if len(old):
            W[old] = self.coef_.T
        W = train(
            self.solver,
            self._layer(),
            X,
            one_hot(codes, n_classes),
            weights,
            W,
            order,
            learning_rate=self.learning_rate,
            n_epochs=n_epochs,
            alpha=self.alpha,
        )
        self._keep_outputs(W, {"one-hot": 0, "lms": n_epochs, "ridge": 1}[self.solver], X)

    @staged("output training", "sums")
    def _add_to_sums(
        self: Any, X: Any, codes: np.ndarray, weights: np.ndarray | None, old: np.ndarray
    ) -> None:
        """Output weights by ridge from the sums over the stream so far."""
        T = one_hot(codes, len(self.classes_))
        m = len(self.centers_)
        normal = getattr(self, "_normal", None)
        self._normal = NormalEquations(m, T.shape[1]) if normal is None else grown(normal, m, old)
        self._normal.add(self._layer(), X, T, weights)
        self._keep_outputs(self._normal.solve(self.alpha, False, keep=True).W, 1, X)

    @staged("back and evaluate", "fitted attributes")
    def _keep_outputs(self: Any, W: np.ndarray, n_iter: int, X: Any) -> None:
        self.coef_ = np.ascontiguousarray(W.T)
        self.n_iter_ = n_iter
        layer = self._layer()
        layer.outputs(X[:1])  # shows which arithmetic the data allow
        self._report(layer)

    @staged("back and evaluate", "scores")
    def _scores(self: Any, X: Any) -> np.ndarray:
        """Outputs (N, k), with the rule for samples outside every radius applied."""
        check_is_fitted(self)
        X = check_X(self, X)
        # One more column sums the activations.
        W = np.concatenate([self.coef_, np.ones((1, len(self.centers_)))]).T
        scores = self._layer().scores(X, W)
        scores, activity = scores[:, :-1], scores[:, -1]
        outside = np.flatnonzero(activity == 0)
        if len(outside):
            rule = {"nearest": "the weights of the nearest center", "zero": "0 for every class"}
            warn(
                f"{len(outside)} of {X.shape[0]} samples lie outside the radius of every center: "
                f"their scores are {rule[self.outside]} (outside={self.outside!r}). A larger "
                "radius or eval_radius reaches further."
            )
            if self.outside == "nearest":
                nearest = nearest_centers(
                    X[outside],
                    self.centers_,
                    self.metric,
                    backend=self.backend,
                    precision=self.precision,
                )
                scores[outside] = self.coef_.T[nearest]
        return scores


def plot_radius_path(estimator: Any, ax: Any) -> Any:
    """See :meth:`gpurbf.FSVC.plot_radius_path`."""
    path = getattr(estimator, "radius_path_", None)
    if path is None:
        raise AttributeError(
            "No radius was searched: there is a path with radius='auto' or eval_radius='auto'."
        )
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.figure().add_subplot()
    x = "eval_radius" if np.ptp(path["radius"]) == 0 else "radius"
    order = np.argsort(path[x], kind="stable")
    ax.plot(path[x][order], 100 * path["score"][order], "o")
    ax.axvline(getattr(estimator, f"{x}_"), color="0.7", zorder=0)
    ax.set(xlabel=x, ylabel="validation accuracy %", xscale="log")
    if x == "radius":
        counts = ax.twinx()
        counts.plot(path[x][order], path["expected_centers"][order], "-", color="C1")
        counts.set(ylabel="centers to expect", yscale="log")
    return ax
