"""Steps of FSVC's public methods: radii, centers, outputs, scores."""

from __future__ import annotations

import functools
import numbers
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from gpurbf.data.hashes import row_hashes
from gpurbf.data.quantize import Quantization
from gpurbf.data.samples import quantizations_of, quantize_or_keep, with_room
from gpurbf.estimators._arrays import ScoreMixin
from gpurbf.estimators._base import steps
from gpurbf.estimators._fitted_layer import FittedLayerMixin
from gpurbf.estimators._validation import (
    TrainingData,
    check_finite,
    check_samples,
    class_mass,
    finite,
    with_class_weights,
)
from gpurbf.fsvc.known import distances, draw_sample, nearest_centers
from gpurbf.fsvc.order import Order, as_drawn, as_given
from gpurbf.fsvc.passes import SELECTIONS, Selection
from gpurbf.fsvc.search import Trial, best, radius_for_ratio, tune
from gpurbf.fsvc.units import KERNELS, METRICS, Unit, grown, iterates
from gpurbf.layer.activation import PRECISIONS
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.arrays import beside, rows_on_host, to_host
from gpurbf.runtime.checks import check_number, check_option
from gpurbf.runtime.errors import warn
from gpurbf.runtime.stages import staged
from gpurbf.solvers import make_solver
from gpurbf.solvers.one_hot import one_hot
from gpurbf.solvers.ridge.normal_equations import NormalEquations


class FSVCLearningMixin(ScoreMixin, FittedLayerMixin):
    """Parameters and fitted attributes are FSVC's."""

    radius: Any
    overlap: float
    kernel: str
    metric: str
    selection: str
    eval_radius: Any
    shuffle: bool
    max_centers: int | None
    class_weight: Any
    random_state: Any
    outside: str
    classes_: np.ndarray
    center_indices_: np.ndarray
    coef_: np.ndarray
    radius_: float
    eval_radius_: float
    radius_path_: dict[str, np.ndarray]
    n_iter_: int
    n_samples_seen_: int
    _selection: Selection
    _stream_quantizations: tuple[Quantization, ...] | None
    _normal: NormalEquations

    def _learn(self, data: TrainingData, *, goes_on: bool) -> None:
        """Learn from samples; a stream that `goes_on` comes in its own order."""
        first = not hasattr(self, "_selection")
        X, codes, self.classes_ = data.X, data.y, data.classes
        solver = check_fsvc_solver(self, goes_on)
        weights = with_class_weights(self.class_weight, self.classes_, codes, data.weights)
        order = self._order(X, codes, weights, first, self.shuffle and not goes_on)
        self._looked_at(X, first)
        seen = 0 if first else self.n_samples_seen_
        places = seen + np.arange(data.n_samples)[data.rows]
        self.n_samples_seen_ = seen + data.n_samples

        old = np.empty(0, np.int64)

        def radii() -> None:
            nonlocal solver
            if first:
                solver = self._find_radii(X, codes, order, solver)

        def centers() -> None:
            nonlocal old
            old = self._choose_centers(X, codes, order.stream, places, first)

        def outputs() -> None:
            if goes_on and solver.needs == "sums":
                W = self._from_sums(solver, X, codes, weights, old)
            else:
                n_classes = len(self.classes_)
                mass = functools.partial(class_mass, codes, data.weights, n_classes)
                W = self._votes(mass)
                if len(old):
                    W[old] = self.coef_.T
                W = self._trained(solver, X, codes, weights, W, order.rows)
            check_finite(self, X, coef_=W)
            self._keep_outputs(W, getattr(solver, "n_epochs", 1))

        y = self.classes_[codes]
        # There is no model before the last of them, so none can be asked to be the last.
        with finite(self, X):
            for work in steps(self, (radii, centers, outputs), 3, X, y, "stage", stops=False):
                work()

    @staged("prepare", "order of the samples")
    def _order(
        self, X: Any, codes: np.ndarray, weights: np.ndarray | None, first: bool, drawn: bool
    ) -> Order:
        keys = np.zeros(X.shape[0], np.uint64)
        if drawn or (first and "auto" in (self.radius, self.eval_radius)):
            seed = check_random_state(self.random_state).randint(2**31 - 1)
            keys = row_hashes(X, seed)
        return as_drawn(keys, weights, codes) if drawn else as_given(keys, weights)

    def _looked_at(self, X: Any, first: bool = True) -> None:
        """Keep the quantizations that all samples so far allow, whatever batches they came in."""
        found = quantizations_of(X, self._pass_precision())
        known = None if first else self._stream_quantizations
        if known is not None and found is not None:
            found = tuple(quantization for quantization in known if quantization in found)
        self._stream_quantizations = found

    def _pass_quantizations(self) -> tuple[Quantization, ...] | None:
        """The coarsest of them alone, so that all that is compared is on one."""
        return self._stream_quantizations and self._stream_quantizations[:1]

    def _pass_precision(self) -> str:
        """That of the pass, whose activities are in float64 or exact, whatever is asked for."""
        return "auto" if self.precision in ("float32", "tf32") else self.precision

    def _new_selection(self, radius: float) -> Selection:
        """An empty selection."""
        unit = Unit(self.kernel, self.metric, radius)
        return Selection(
            self.selection,
            unit=unit,
            overlap=self.overlap,
            n_classes=len(self.classes_),
            max_centers=self.max_centers,
            **self._makers(),
        )

    def _makers(self) -> dict[str, Any]:
        """How a pass makes its layers and looks at samples."""
        precision, quantizations = self._pass_precision(), self._pass_quantizations()
        found: dict[str, Any] = {"precision": precision, "quantizations": quantizations}
        layer = functools.partial(HiddenLayer, backend=self.backend, dtype=np.float64, **found)
        return {"layer": layer, "look": functools.partial(quantize_or_keep, **found)}

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "_selection" in state:
            state["_selection"] = state["_selection"].plain()
            del state["_activation"]  # of "sqeuclidean" a function; the selection tells it
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_selection" in state:
            vars(self).setdefault(
                "_stream_quantizations", self._quantizations
            )  # before it was kept
            self._selection = Selection.from_plain(state["_selection"], **self._makers())
            self._activation = self._evaluated(self._selection.unit).activation()

    def _evaluated(self, unit: Unit) -> Unit:
        """The unit of the pass as the outputs have it."""
        return unit._replace(radius=self.eval_radius_)

    @staged("prepare", "radius search")
    def _find_radii(self, X: Any, codes: np.ndarray, order: Order, solver: Any) -> Any:
        """Set radius_ and eval_radius_; returns the solver with the epochs that a search found."""
        options = {"backend": self.backend, "precision": self.precision}
        radius = None if self.radius == "auto" else self.radius
        if radius == "ratio":
            some = X[order.stream[:: max(1, len(order.stream) // 200)]]
            D = distances(some, some, self.metric, **options)
            radius = radius_for_ratio(X, codes, order.stream, self._new_selection, D)
        if radius is None or self.eval_radius == "auto":
            trials = tune(
                draw_sample(X, codes, order, self.metric, **options),
                len(order.stream),
                n_classes=len(self.classes_),
                kind=self.selection,
                kernel=self.kernel,
                overlap=self.overlap,
                solver=solver,
                max_centers=self.max_centers,
                radius=radius,
                eval_radius=self.eval_radius,
            )
            columns = zip(*trials, strict=True)
            self.radius_path_ = dict(zip(Trial._fields, map(np.array, columns), strict=True))
            chosen = best(trials)
            radius, self.eval_radius_ = chosen.radius, chosen.eval_radius
            if hasattr(solver, "epochs"):
                solver = clone(solver).set_params(n_epochs=chosen.n_iter)
        else:
            self.eval_radius_ = float(radius if self.eval_radius is None else self.eval_radius)
        self.radius_ = float(radius)
        return solver

    @staged("prepare", "centers packed, norms")
    def _choose_centers(
        self, X: Any, codes: np.ndarray, stream: np.ndarray, places: np.ndarray, first: bool
    ) -> np.ndarray:
        """Go on with the pass; returns where the centers that there were before are now."""
        # What the model has goes on in a copy, in case that this breaks off.
        if first:
            chosen = self._new_selection(self.radius_)
        else:
            chosen = self._selection.copy(**self._makers())
        old = chosen.feed(X, codes, stream, places)
        self._keep_centers(chosen)
        return old

    def _keep_centers(self, chosen: Selection) -> None:
        """The layer of the centers that were chosen."""
        self._selection = chosen
        self._keep_layer(
            HiddenLayer(
                with_room(chosen.centers),
                self._evaluated(chosen.unit).activation(),
                backend=self.backend,
                precision=self.precision,
                quantizations=self._pass_quantizations(),
            )
        )
        self.center_indices_ = chosen.indices

    def _votes(self, mass: Callable[[], np.ndarray]) -> np.ndarray:
        """Output weights (m, k) before training, see `class_votes`."""
        votes = class_votes(self.class_weight, self.classes_, mass)
        labels = self._selection.labels
        return one_hot(labels, len(self.classes_)) * votes[labels, None]

    @staged("output training")
    def _trained(
        self,
        solver: Any,
        X: Any,
        codes: np.ndarray,
        weights: np.ndarray | None,
        W: np.ndarray,
        rows: np.ndarray,
    ) -> np.ndarray:
        """Output weights from those at the start, W."""
        T = one_hot(codes, len(self.classes_))
        return deque(iterates(solver, self._layer(), X, T, weights, W, rows), maxlen=1).pop()

    @staged("output training", "sums")
    def _from_sums(
        self, solver: Any, X: Any, codes: np.ndarray, weights: np.ndarray | None, old: np.ndarray
    ) -> np.ndarray:
        """Output weights from the sums over the stream so far."""
        T, m = one_hot(codes, len(self.classes_)), len(self.centers_)
        sums: NormalEquations | None = getattr(self, "_normal", None)
        normal = NormalEquations(m, T.shape[1]) if sums is None else grown(sums, m, old)
        normal.add(self._layer(), X, T, weights)
        self._normal = normal
        return solver.solve(normal, keep=True).W

    @staged("back and evaluate", "fitted attributes")
    def _keep_outputs(self, W: np.ndarray, n_iter: int) -> None:
        self.coef_ = np.array(W.T, order="C")
        self.n_iter_ = n_iter
        self._report(self._layer())

    @staged("back and evaluate", "scores")
    def _scores(self, X: Any) -> np.ndarray:
        """Outputs (N, k), with the rule for samples outside every radius applied."""
        check_is_fitted(self)
        X = check_samples(self, X)
        # One more column sums the activations.
        W = np.concatenate([self.coef_, np.ones((1, len(self.centers_)))]).T
        scores = self._layer().scores(X, W)
        check_finite(self, X, outputs=scores)
        scores, silent = scores[:, :-1], scores[:, -1] == 0
        if silent.any():  # which is one number
            outside = np.flatnonzero(to_host(silent))
            rule = {"nearest": "the weights of the nearest center", "zero": "0 for every class"}
            warn(
                f"{len(outside)} of {X.shape[0]} samples lie outside the radius of every center: "
                f"their scores are {rule[self.outside]} (outside={self.outside!r}). A larger "
                "radius or eval_radius reaches further."
            )
            if self.outside == "nearest":
                with finite(self, X):
                    nearest = nearest_centers(
                        rows_on_host(X, outside),
                        self.centers_,
                        self._selection.unit.metric,
                        backend=self.backend,
                        precision=self.precision,
                    )
                scores[beside(X, outside)] = beside(X, self.coef_.T[nearest])
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


OUTSIDE = ("nearest", "zero")


def check_fsvc_parameters(estimator: Any) -> None:
    """Every parameter but those that the data decide.

    Raises
    ------
    ValueError, TypeError
        Naming the parameter, what it got and what it takes.
    """
    if isinstance(estimator.radius, str):
        check_option("radius", estimator.radius, ("auto", "ratio"), "or a number > 0")
    else:
        check_number("radius", estimator.radius, numbers.Real, 0, above=True)
    if isinstance(estimator.eval_radius, str):
        check_option("eval_radius", estimator.eval_radius, ("auto",), "a number > 0, or None")
    elif estimator.eval_radius is not None:
        check_number("eval_radius", estimator.eval_radius, numbers.Real, 0, above=True)
    check_number("overlap", estimator.overlap, numbers.Real, 0, above=True)
    check_option("kernel", estimator.kernel, KERNELS)
    check_option("metric", estimator.metric, METRICS)
    check_option("selection", estimator.selection, SELECTIONS)
    check_option("outside", estimator.outside, OUTSIDE)
    check_option("precision", estimator.precision, PRECISIONS)
    check_number("learning_rate", estimator.learning_rate, numbers.Real, 0)
    check_number("n_epochs", estimator.n_epochs, numbers.Integral, 1)
    check_number("alpha", estimator.alpha, numbers.Real, 0, above=True)
    if estimator.max_centers is not None:
        check_number("max_centers", estimator.max_centers, numbers.Integral, 1)
    check_fsvc_solver(estimator)


def check_fsvc_solver(estimator: Any, goes_on: bool = False) -> Any:
    """The solver of the parameters; one that is named takes one epoch over a chunk of a stream."""
    solver = make_solver(
        estimator.solver,
        alpha=estimator.alpha,
        fit_intercept=False,
        learning_rate=estimator.learning_rate,
        n_epochs=1 if goes_on else estimator.n_epochs,
    )
    if solver.needs == "products":
        raise ValueError(
            f"FSVC has few centers and no use for solver={estimator.solver!r}: use 'ridge', which "
            "solves the same in closed form."
        )
    if getattr(solver, "fit_intercept", False):
        raise ValueError(
            f"FSVC's outputs have no constant, solver={solver!r} has one: set fit_intercept=False."
        )
    return solver


def class_votes(
    class_weight: Any, classes: np.ndarray, mass: Callable[[], np.ndarray]
) -> np.ndarray:
    """What a center of each class says before training: 1 for the class of the largest weight.

    "balanced" asks for the classes' mass.
    """
    if class_weight is None:
        return np.ones(len(classes))
    if class_weight == "balanced":
        factors = 1 / mass().astype(float)
    else:
        factors = np.array([class_weight.get(label, 1.0) for label in classes.tolist()])
    return factors / max(factors.max(), np.finfo(float).tiny)
