"""FSVC: support vectors chosen in one pass, one radius, one rule to train the outputs."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state, gen_batches
from sklearn.utils.validation import _num_samples, check_is_fitted

from gpurbf.data.hashes import row_hashes
from gpurbf.data.quantize import Quantization
from gpurbf.data.row_blocks import read_ahead
from gpurbf.data.samples import FORCED, quantizations_of, with_room
from gpurbf.estimators import _choices as choices
from gpurbf.estimators._base import (
    CallbackSupportMixin,
    ScoreMixin,
    new_axes,
    steps,
    transaction,
    where_X_is,
    with_callbacks,
)
from gpurbf.estimators._fitted_layer import FittedLayerMixin
from gpurbf.estimators._validation import (
    Rows,
    check_common_parameters,
    check_finite,
    finite,
    profile_of,
    stream_data,
    training_data,
)
from gpurbf.fsvc.known import distances, draw_sample, nearest_centers
from gpurbf.fsvc.search import Trial, best, radius_for_ratio, tune
from gpurbf.fsvc.selection import (
    SELECTIONS,
    Arithmetic,
    Order,
    Rule,
    Selection,
    order_of,
    pass_precision,
)
from gpurbf.fsvc.units import KERNELS, METRICS, Unit
from gpurbf.layer.activation import Activation
from gpurbf.runtime.arrays import beside, chosen, to_host
from gpurbf.runtime.checks import check_number, check_option, check_option_or_number, plain
from gpurbf.runtime.errors import quiet, warn
from gpurbf.runtime.stages import stage
from gpurbf.runtime.threads import limited
from gpurbf.solvers import make_solver
from gpurbf.solvers.one_hot import TARGET_ROWS, mean_targets, one_hot, votes, winning_class
from gpurbf.solvers.ridge import RidgeSolution
from gpurbf.solvers.ridge.fixed_point import fixed_point
from gpurbf.solvers.ridge.normal_equations import NormalEquations

# The square of a smaller radius is no normal number of float64, or 0.
_LEAST_RADIUS = 1.5e-154
# What all published recipes have in common.
_RECIPE = {"eval_radius": None, "shuffle": False, "outside": "zero"}


class FSVC(ScoreMixin, FittedLayerMixin, CallbackSupportMixin, ClassifierMixin, BaseEstimator):
    """Fast support vector classifier: centers in one pass, one radius, one rule for the outputs.

    One pass over the samples chooses the centers: a sample x is novel if
    ``sum_c phi(d(x, c)) < overlap`` over the centers c so far, and `selection` says which novel
    samples become centers. Centers feed a layer of the same units, whose outputs are
    trained by one rule. :meth:`published` makes R. and I. Dogaru's classifier as published and
    :meth:`sfsvc` their variant of 2018; the defaults go further. This is not the later method of
    the same name by Fernandez-Delgado et al. (2022).

    Parameters
    ----------
    radius : float, "auto" or "ratio", default="auto"
        Radius r of the units, in the units of the data. ``"auto"`` searches for the radius with the
        best accuracy on a fifth of the samples (of each class), which the search does not use to
        choose centers or to train. ``"ratio"`` bisects for a radius that makes 2 to 5 % of the
        samples centers, but no fewer than there are classes, if there is one.
    overlap : float, default=1.0
        A sample is novel if its activity, the sum of its activations, is below this.
    kernel : {"gaussian", "triangular"}, default="gaussian"
        Unit phi(d): exp(-d² / (2 r²)), also called ``"rbf"``, or max(0, 1 - d / (sqrt(2 pi) r)).
    metric : {"euclidean", "manhattan", "sqeuclidean"}, default="euclidean"
        Distance d: Euclidean, the sum of absolute differences, or (SFSVC) the squared Euclidean
        distance.
    selection : {"error", "pass", "per-class"}, default="error"
        ``"error"`` takes a novel sample only if the network so far misclassifies it, or nearly:
        centers vote for their classes with their activations, and the sample's class leads the best
        other class by less than a tenth of all activity. ``"pass"`` ignores the labels, as
        published; ``"per-class"`` makes one pass over each class on its own.
    eval_radius : float, "auto" or None, default="auto"
        Radius of the units in the trained network; None: `radius`. Wider units are usually better
        for trained outputs. ``"auto"`` searches for it as for `radius`, also if `radius` is a
        number.
    solver : {"ridge", "lms", "one-hot"} or object, default="ridge"
        How outputs are trained. ``"one-hot"``: each center votes for its own class. ``"lms"``: from
        these votes, by the on-line delta rule, sample by sample. ``"ridge"``: least squares in
        closed form. None of them has a bias. An object of ``gpurbf.solvers`` has its own
        parameters: ``LMS(0.01, n_epochs=3)``.
    learning_rate : float, default=0.1
        Step of ``"lms"``. Choose it below 2 / max sum_c phi²: above, the weights may grow without
        limit, beyond 1e18 with a DivergenceError. 0 leaves the weights unchanged.
    n_epochs : int, default=10
        Number of epochs of ``"lms"``; if a radius is searched, the maximum number: the search
        chooses the best epoch.
    alpha : float, default=1e-6
        Penalty of ``"ridge"``, relative to the mean diagonal of HᵀH.
    shuffle : bool, default=True
        Whether samples are taken in random order. `random_state` draws the order from their values,
        so the order in which they are stored does not matter, and equal samples count once in the
        pass. False: in the order given, as published.
    max_centers : int or None, default=None
        Maximum number of centers (with ``"per-class"``, each class gets an equal share).
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied with the sample weights; also the weights of the centers'
        votes before training. The choice of centers ignores them.
    backend : str, default="auto"
        Where the layer is evaluated: ``"numpy"``, ``"mkl"``, ``"numba"``, ``"cupy"``,
        ``"numba-cuda"`` or ``"auto"``.
    precision : {"auto", "exact", "float32", "tf32", "float64"}, default="auto"
        Arithmetic of the distances; ``"auto"`` is exact on small integers, see :class:`RBFLayer`.
        Every backend chooses the same centers, those of a pass sample by sample in float64.
    n_jobs : int or None, default=None
        Maximum number of threads; None and -1 use all that NumPy, Numba and joblib allow.
    random_state : int, RandomState or None, default=None
        Seed of the order and of the samples held out.
    outside : {"nearest", "zero"}, default="nearest"
        Scores of a sample that activates no center. ``"nearest"``: the output weights of its
        nearest center, whose class it would get if the radius grew. ``"zero"``: 0 for every class,
        so that the first class is predicted, as published.
    verbose : bool or int, default=False
        Print a line for each step of ``fit``. ``set_callbacks(ProgressBar())`` draws a bar instead,
        with ``sklearn.callback`` of scikit-learn 1.9.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    centers_ : ndarray of shape (m, n_features)
    center_indices_ : ndarray of shape (m,)
        Samples that became centers, in the order of the pass: their rows in the training data, or
        their places in the stream that ``partial_fit`` saw.
    radius_, eval_radius_ : float
    coef_ : ndarray of shape (n_outputs, m)
        Output weights; one output for two classes (second minus first), else one per class.
    n_iter_ : int
        Epochs of ``"lms"``; 1 for ``"ridge"``, 0 for ``"one-hot"``.
    n_samples_seen_ : int
    radius_path_ : dict of ndarrays
        Trials of a search, one entry each: ``radius``, ``eval_radius``, ``n_centers`` (among the
        samples that it used), ``expected_centers`` (among all samples), ``score`` (validation
        accuracy), ``loss``, ``n_iter``. Absent if neither `radius` nor `eval_radius` is
        ``"auto"``.
    backend_, backend_info_ : str
        The backend that ran; its kernel, its arithmetic and the reason for its choice.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only if X had string feature names.

    See Also
    --------
    RBFClassifier : Other rules for centers; FSVC's are ``centers="fsvc"`` and ``"fsvc-class"``.

    Notes
    -----
    In every step, a weight of 2 is the same as giving a sample twice, and a weight of 0 the same as
    leaving it out. Equal samples count once in the pass (up to ``overlap=1`` copies never became
    centers anyway), outputs and searches count them by weight, and one ``"lms"`` step of weight w
    equals w steps in succession. This holds with ``shuffle=True``; in a given order the result
    depends on the order.

    References
    ----------
    R. and I. Dogaru: RBF-M (2007), the fast support vector classifier (2017), SFSVC (2018).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpurbf import FSVC
    >>> X, y = load_digits(return_X_y=True)
    >>> FSVC(random_state=0).fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.95
    True
    """

    def __init__(
        self,
        radius: float | Literal["auto", "ratio"] = "auto",
        *,
        overlap: float = 1.0,
        kernel: choices.Unit = "gaussian",
        metric: choices.Distance = "euclidean",
        selection: Literal["error", "pass", "per-class"] = "error",
        eval_radius: float | Literal["auto"] | None = "auto",
        solver: Literal["ridge", "lms", "one-hot"] | Any = "ridge",
        learning_rate: float = 0.1,
        n_epochs: int = 10,
        alpha: float = 1e-6,
        shuffle: bool = True,
        max_centers: int | None = None,
        class_weight: choices.ClassWeight = None,
        backend: choices.Backend = "auto",
        precision: choices.Precision = "auto",
        n_jobs: int | None = None,
        random_state: choices.RandomState = None,
        outside: Literal["nearest", "zero"] = "nearest",
        verbose: bool | int = False,
    ) -> None:
        self.radius = radius
        self.overlap = overlap
        self.kernel = kernel
        self.metric = metric
        self.selection = selection
        self.eval_radius = eval_radius
        self.solver = solver
        self.learning_rate = learning_rate
        self.n_epochs = n_epochs
        self.alpha = alpha
        self.shuffle = shuffle
        self.max_centers = max_centers
        self.class_weight = class_weight
        self.backend = backend
        self.precision = precision
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.outside = outside
        self.verbose = verbose

    @classmethod
    def published(cls, radius: float, *, learning_rate: float = 0.0, **parameters: Any) -> FSVC:
        """The recipe as published: samples in the order given, votes or LMS, plain argmax.

        Parameters
        ----------
        radius : float
        learning_rate : float, default=0.0
            0: "no tuning", every center votes for its own class.
        **parameters
            Other parameters of the class; the defaults of `kernel` ("triangular"), `metric`
            ("manhattan") and `n_epochs` (1) are those of the later papers.

        Returns
        -------
        model : FSVC
        """
        recipe = _RECIPE | {
            "kernel": "triangular",
            "metric": "manhattan",
            "selection": "pass",
            "solver": "lms" if learning_rate else "one-hot",
            "n_epochs": 1,
        }
        return cls(radius, learning_rate=learning_rate, **recipe | parameters)

    @classmethod
    def sfsvc(cls, radius: float, **parameters: Any) -> FSVC:
        """SFSVC of 2018: a pass over each class, the squared Euclidean distance, no training.

        Parameters
        ----------
        radius : float
        **parameters
            Other parameters of the class, such as `overlap` and `kernel`.

        Returns
        -------
        model : FSVC
        """
        recipe = {"metric": "sqeuclidean", "selection": "per-class", "solver": "one-hot"}
        return cls(radius, **_RECIPE | recipe | parameters)

    @transaction
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FSVC:
        """Choose the centers and train the outputs.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
            float64, float32 and uint8 are used as they are, other dtypes as float64; nothing is
            rescaled, so radii are in the data's units.
        y : array-like of shape (n_samples,)
            Labels that scikit-learn's classifiers take (integers, strings, booleans, dates), of two
            classes or more.
        sample_weight : array-like of shape (n_samples,), optional
            Not negative; 0 leaves a sample out of everything, other weights count in the training
            of the outputs and in the search for radii.

        Returns
        -------
        self : FSVC

        Raises
        ------
        ValueError, TypeError
            For bad data or parameters; the message says what to do.
        BackendUnavailable
            If the backend named cannot run here.
        """
        solver = check_fsvc_parameters(self)
        for attribute in ("_normal", "_selection", "coef_", "radius_path_"):
            self.__dict__.pop(attribute, None)
        rows = training_data(self, X, y, sample_weight)
        self._learn(rows, _num_samples(y), solver, goes_on=False)
        return self

    @transaction
    @with_callbacks
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> FSVC:
        """Continue the pass with the next samples of a stream, and update the outputs.

        The centers are those of one pass over the whole stream in the order given, whatever its
        chunks (`shuffle` does not apply). A search for radii uses the first chunk. Outputs:
        "one-hot" needs no training; "lms" makes one epoch over the chunk; "ridge" adds the chunk to
        sums that are kept (8 m² bytes); for centers that are chosen later, samples of earlier
        chunks count as if they did not activate them.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        classes : array-like of shape (n_classes,), optional
            All labels of the stream; required in the first call.
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        self : FSVC

        Raises
        ------
        ValueError
            If `classes` is missing, or a label is not among them.

        Warns
        -----
        UserWarning
            With "ridge" after ``fit`` or after chunks for another solver: these keep no sums, so
            the sums start anew.
        """
        solver, first = check_fsvc_parameters(self, goes_on=True), not hasattr(self, "_selection")
        radii = self.radius, self.eval_radius
        learns = ""
        if any(isinstance(r, str) for r in radii):
            learns = "A radius is searched on it alone"
        elif self.solver != "one-hot":
            learns = "The outputs of later centers do not learn from it"
        rows = stream_data(self, X, y, classes, sample_weight, first=first, learns=learns)
        if solver.needs == "sums" and not first and not hasattr(self, "_normal"):
            warn(
                "fit keeps no sums to add to, nor does partial_fit with another solver: the "
                "outputs are trained anew from this chunk on. Call partial_fit with this solver "
                "from the first chunk on instead."
            )
        self._learn(rows, _num_samples(y), solver, goes_on=True)
        return self

    @where_X_is
    def decision_function(self, X: Any) -> np.ndarray:
        """The network's outputs.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)

        Returns
        -------
        scores : ndarray of shape (n_samples, n_classes) or (n_samples,)
            One per class; for two classes the second minus the first.

        Warns
        -----
        UserWarning
            If samples lie outside every radius; it gives their number, see `outside`.
        """
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @where_X_is
    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest output; the lowest of equal ones.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)

        Returns
        -------
        labels : ndarray of shape (n_samples,)

        Warns
        -----
        UserWarning
            If samples lie outside every radius; it gives their number, see `outside`.
        """
        scores = self._scores(X)
        with stage("back and evaluate", "labels"):
            return chosen(self.classes_, winning_class(scores))

    def plot_radius_path(self, ax: Any = None) -> Any:
        """Validation accuracy and expected number of centers over the radii that were tried.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        ax : matplotlib Axes

        Raises
        ------
        AttributeError
            If neither `radius` nor `eval_radius` is ``"auto"``.
        """
        check_is_fitted(self)
        path = getattr(self, "radius_path_", None)
        if path is None:
            raise AttributeError("No radius was searched: fit with radius or eval_radius 'auto'.")
        ax = ax or new_axes("plot_radius_path")
        x = "eval_radius" if np.ptp(path["radius"]) == 0 else "radius"
        order = np.argsort(path[x], kind="stable")
        ax.plot(path[x][order], 100 * path["score"][order], "o")
        ax.axvline(getattr(self, f"{x}_"), color="0.7", zorder=0)
        ax.set(xlabel=x, ylabel="validation accuracy %", xscale="log")
        if x == "radius":
            counts = ax.twinx()
            counts.plot(path[x][order], path["expected_centers"][order], "-", color="C1")
            counts.set(ylabel="centers to expect", yscale="log")
        return ax

    def _learn(self, rows: Rows, n_given: int, solver: Any, *, goes_on: bool) -> None:
        """Learn from samples, out of ``n_given``.

        ``goes_on``: they are a chunk of a stream, taken in its own order.
        """
        first = not hasattr(self, "_selection")
        with limited(self.n_jobs), finite(self, rows.X):
            rows, factors = rows.with_class_weights(self)
            X, codes = rows.X, rows.y
            order = self._order(rows, first, self.shuffle and not goes_on)
            self._keep_quantizations(X)
            seen = 0 if first else self.n_samples_seen_
            places = seen + (np.arange(n_given) if rows.places is None else rows.places)
            self.n_samples_seen_: int = seen + n_given
            y, stages = self.classes_[codes], ("radii", "centers", "outputs")
            # There is no model before the last stage, so callbacks cannot stop earlier.
            for name in steps(self, stages, 3, X, y, stops=False):
                if name == "radii" and first:
                    solver = self._find_radii(X, codes, order, solver)
                elif name == "centers":
                    old = self._choose_centers(X, codes, order.stream, places)
                elif name == "outputs":
                    W = votes(self._selection.labels, len(self.classes_), factors)
                    W = self._trained(solver, rows, order, W, old, goes_on)
                    self._keep_outputs(W, solver, X)

    @stage("prepare", "order of the samples")
    def _order(self, rows: Rows, first: bool, drawn: bool) -> Order:
        X, y, weights, _ = rows
        keys = np.zeros(X.shape[0], np.uint64)
        if drawn or (first and "auto" in (self.radius, self.eval_radius)):
            keys = row_hashes(X, check_random_state(self.random_state).randint(2**31 - 1))
        return order_of(keys, weights, y, drawn=drawn)

    def _keep_quantizations(self, X: Any) -> None:
        """Keep the quantizations that all samples so far allow, whatever batches they came in."""
        found = quantizations_of(X, pass_precision(self.precision))
        known = self._stream_quantizations if hasattr(self, "_selection") else None
        if known is not None and found is not None:
            if not X.shape[0]:  # a chunk of which no sample has a weight
                return
            found = tuple(quantization for quantization in known if quantization in found)
        self._stream_quantizations: tuple[Quantization, ...] | None = found

    def _new_selection(self, radius: float) -> Selection:
        unit = Unit(profile_of(self.kernel), self.metric, radius)
        return Selection(self._rule(), self._pass_arithmetic(), unit)

    def _rule(self) -> Rule:
        most, n_classes = self.max_centers, len(self.classes_)
        if self.selection == "per-class" and most is not None and most < n_classes:
            raise ValueError(
                f"max_centers={most} is less than the {n_classes} classes, each of which gets its "
                'share with selection="per-class".'
            )
        most = None if most is None else int(most)  # sums of NumPy's short integers overflow
        return Rule(self.selection, float(self.overlap), n_classes, most)

    def _pass_arithmetic(self) -> Arithmetic:
        # Only the coarsest quantization, so that all comparisons use the same one.
        quantizations = self._stream_quantizations and self._stream_quantizations[:1]
        return Arithmetic(self.backend, pass_precision(self.precision), quantizations)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "_selection" in state:
            state["_selection"] = state["_selection"].plain()
            del state["_activation"]  # a function for "sqeuclidean"; restored from the selection
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_selection" in state:
            # Pickles of 0.1.0 may lack it.
            self.__dict__.setdefault("_stream_quantizations", self._quantizations)
            self._selection = Selection.from_plain(state["_selection"], self._pass_arithmetic())
            self._activation = self._evaluated()

    def _evaluated(self) -> Activation:
        """The unit of the pass, with the radius of the trained network."""
        return self._selection.unit._replace(radius=self.eval_radius_).activation()

    @stage("prepare", "radius search")
    def _find_radii(self, X: Any, codes: np.ndarray, order: Order, solver: Any) -> Any:
        """Set radius_ and eval_radius_; returns the solver with the epochs that a search found."""
        radius = None if self.radius == "auto" else self.radius
        if radius == "ratio":
            some = X[order.stream[:: max(1, len(order.stream) // 200)]]
            D = distances(some, some, self.metric, **self._options)
            passes = self._rule(), self._new_selection
            radius = radius_for_ratio(X, codes, order.stream, *passes, D)
        elif radius is not None:
            radius = float(radius)
        if radius is None or self.eval_radius == "auto":
            trials = tune(
                draw_sample(X, codes, order, self.metric, **self._options),
                len(order.stream),
                self._rule(),
                kernel=profile_of(self.kernel),
                solver=solver,
                radius=radius,
                eval_radius=self.eval_radius,
            )
            columns = zip(*trials, strict=True)
            self.radius_path_ = dict(zip(Trial._fields, map(np.array, columns), strict=True))
            trial = best(trials)
            radius, self.eval_radius_ = trial.radius, trial.eval_radius
            if hasattr(solver, "epochs"):
                solver = clone(solver).set_params(n_epochs=trial.n_iter)
        else:
            self.eval_radius_ = float(radius if self.eval_radius is None else self.eval_radius)
        self.radius_ = float(radius)
        return solver

    @stage("prepare", "centers packed, norms")
    def _choose_centers(
        self, X: Any, codes: np.ndarray, stream: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Continue the pass; returns the new places of the earlier centers."""
        if hasattr(self, "_selection"):
            # It continues in a copy, in case this is interrupted.
            selection = self._selection.copy(self._pass_arithmetic())
        else:
            selection = self._new_selection(self.radius_)
        old = selection.feed(X, codes, stream, places)
        self._keep_centers(selection)
        return old

    def _keep_centers(self, selection: Selection) -> None:
        """Keep the selection, and the layer of its centers."""
        self._selection = selection
        C, quantizations = with_room(selection.centers), self._pass_arithmetic().quantizations
        # A Gaussian unit reaches 38 radii in float64, 13 in float32. It matters where samples that
        # no unit reaches get no class of their own.
        wide = self.outside == "zero" and profile_of(self.kernel) == "gaussian"
        dtype = np.float64 if wide else None
        self._keep_layer(self._new_layer(C, self._evaluated(), quantizations, dtype))
        self.center_indices_ = selection.indices

    @stage("output training")
    def _trained(
        self, solver: Any, rows: Rows, order: Order, W: np.ndarray, old: np.ndarray, keep: bool
    ) -> np.ndarray:
        """Output weights, trained by the rows in that order.

        They start from the votes W; the first centers, now at the places ``old``, from their
        weights so far. Sums go on from those of the stream so far, and are kept with ``keep``.
        """
        X, y, weights, _ = rows
        # Sums that are not added to would lack these samples.
        sums: NormalEquations | None = self.__dict__.pop("_normal", None)

        def solve() -> RidgeSolution:
            if sums is None:
                normal = NormalEquations(W.shape[1], *fixed_point(self._layer(), X))
            else:
                normal = sums.grown(len(W), old)
            for batch, part in read_ahead(X, list(gen_batches(max(1, X.shape[0]), TARGET_ROWS))):
                own = None if weights is None else weights[batch]
                normal.add(self._layer(), part, one_hot(y[batch], len(self.classes_)), own)
            if keep:
                self._normal = normal
            return solver.solve(normal, keep=keep)

        if solver.needs == "sums":  # those of a stream are not made again
            return solve().W if keep else solved(self, solve)
        if len(old):
            W[old] = self.coef_.T
        if not len(order.rows):  # a chunk of which no sample has a weight
            return W
        keys = order.keys if self.shuffle and not keep else None
        T = mean_targets(y, len(self.classes_), keys, weights)
        return solver.train(self._layer(), X, T, weights, start=W, order=order.rows)

    @stage("back and evaluate", "fitted attributes")
    def _keep_outputs(self, W: np.ndarray, solver: Any, X: Any) -> None:
        """Keep the output weights, learned from data X."""
        check_finite(self, X, coef_=W)
        self.coef_ = np.array(W.T, order="C")
        self.n_iter_ = getattr(solver, "n_epochs", 1)

    @stage("back and evaluate", "scores")
    def _scores(self, X: Any) -> np.ndarray:
        """Outputs (N, k), with the rule for samples outside every radius applied."""
        X = self._checked(X)
        # One more column sums the activations.
        W = np.concatenate([self.coef_, np.ones((1, len(self.centers_)))]).T
        with limited(self.n_jobs):
            scores = self._layer().matvec(X, W)
        check_finite(self, X, outputs=scores)
        scores, silent = scores[:, :-1], scores[:, -1] == 0
        if silent.any():  # only one number leaves the device
            outside = np.flatnonzero(to_host(silent))
            rule = {"nearest": "the weights of the nearest center", "zero": "0 for every class"}
            warn(
                f"{len(outside)} of {X.shape[0]} samples lie outside the radius of every center: "
                f"their scores are {rule[self.outside]} (outside={self.outside!r}). A larger "
                "radius or eval_radius reaches further."
            )
            if self.outside == "nearest":
                with finite(self, X):
                    far, metric = to_host(X[beside(X, outside)]), self._selection.unit.metric
                    nearest = nearest_centers(far, self.centers_, metric, **self._options)
                scores[beside(X, outside)] = beside(X, self.coef_.T[nearest])
        return scores


def solved(model: FSVC, solve: Callable[[], RidgeSolution]) -> np.ndarray:
    """The weights that ``solve()`` finds with the model's layer, in float64 if float32 is coarse.

    Rounded sums of float32 may not be positive definite with a small penalty: with few inputs,
    units overlap. Then the model keeps the layer in float64.
    """
    layer = model._layer()
    if layer.dtype == np.float32 and model.precision not in FORCED:
        with quiet():
            solution = solve()
        if solution.definite:
            return solution.W
        del solution  # it keeps a factor (m, m)
        model._keep_layer(layer.in_float64())
    return solve().W


def check_fsvc_parameters(estimator: Any, goes_on: bool = False) -> Any:
    """Check every parameter that can be checked without data; return the solver.

    ``goes_on``: a solver given by name makes one epoch over a chunk of a stream.

    Raises
    ------
    ValueError, TypeError
        The message names the parameter, its value and what is allowed.
    """
    radius, eval_radius = estimator.radius, estimator.eval_radius
    check_option_or_number("radius", radius, ("auto", "ratio"), numbers.Real, 0, above=True)
    if eval_radius is not None:
        check_option_or_number("eval_radius", eval_radius, ("auto",), numbers.Real, 0, above=True)
    for name, value in (("radius", radius), ("eval_radius", eval_radius)):
        if isinstance(value, numbers.Real) and value < _LEAST_RADIUS:
            raise ValueError(
                f"{name}={plain(value)!r} is too small: float64 does not hold its square. Multiply "
                "the data and the radius by the same number."
            )
    check_number("overlap", estimator.overlap, numbers.Real, 0, above=True)
    check_option("kernel", profile_of(estimator.kernel), KERNELS)
    check_option("metric", estimator.metric, METRICS)
    check_option("selection", estimator.selection, SELECTIONS)
    check_option("outside", estimator.outside, ("nearest", "zero"))
    check_common_parameters(estimator)
    check_number("learning_rate", estimator.learning_rate, numbers.Real, 0)
    check_number("n_epochs", estimator.n_epochs, numbers.Integral, 1)
    check_number("alpha", estimator.alpha, numbers.Real, 0, above=True)
    if estimator.max_centers is not None:
        check_number("max_centers", estimator.max_centers, numbers.Integral, 1)
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
