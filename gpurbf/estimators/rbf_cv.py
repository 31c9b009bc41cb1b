"""RBFClassifierCV: an RBF network whose penalty and width the leave-one-out error chooses."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import check_scoring, get_scorer
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted

from gpurbf.centers.sample import Distinct, Race
from gpurbf.data.row_blocks import read_ahead
from gpurbf.estimators import _choices as choices
from gpurbf.estimators._base import (
    CallbackSupportMixin,
    LogProbaMixin,
    new_axes,
    steps,
    transaction,
    with_callbacks,
)
from gpurbf.estimators._left_out import (
    Copies,
    copies_of,
    copies_within,
    leave_out,
    of_all_classes,
)
from gpurbf.estimators._rbf_outputs import RBFOutputsMixin
from gpurbf.estimators._validation import Rows, check_finite, finite, training_data
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.arrays import chosen
from gpurbf.runtime.checks import check_number, check_option_or_number
from gpurbf.runtime.stages import stage
from gpurbf.runtime.threads import limited
from gpurbf.solvers.calibration import fit_temperature, probabilities
from gpurbf.solvers.one_hot import one_hot, winning_class
from gpurbf.solvers.ridge.normal_equations import NormalEquations
from gpurbf.solvers.ridge.path import RidgePath

# Rows between two reports of progress; rows that are left out at a time, whose H is in memory.
_ROWS_A_STEP, _ROWS_LEFT_OUT = 8192, 2048
# The minimum and the maximum of rows that "auto" leaves out.
_FEWEST, _MOST = 256, 1000
# Rows for a scorer if samples of whole weights, such as copies, are repeated for it.
_MOST_REPEATED = 1 << 17
# Rows are enough if no other penalty can be better by more than this fraction of the error.
_TOLERANCE = 0.01
# Distinct samples that may be left out, and their copies.
Chosen = tuple[Distinct, Copies]


class RBFClassifierCV(RBFOutputsMixin, CallbackSupportMixin, ClassifierMixin, BaseEstimator):
    """RBFClassifier with its penalty and width chosen by the leave-one-out error.

    One training for each width gives the error of all penalties in closed form, and there is no
    refit. With 20 penalties and one width the fit was measured to take 1.1 to 2.1 times as long as
    that of :class:`RBFClassifier` with up to 1,000 centers, 1.6 to 2.5 times with 2,000, and 3.6 to
    6 times with 4,000 to 8,000; with five widths 7.7 to 16 times with up to 2,000 centers.

    Parameters
    ----------
    n_centers : int, "auto" or "all", default="auto"
        See :class:`RBFClassifier`, also for the parameters not described here.
    alphas : array-like of shape (n_alphas,) or None, default=None
        Penalties to try, > 0, as :class:`RBFClassifier`'s `alpha`. None: 20 from 1e-6 to 1, each
        about twice the one before.
    gammas : array-like of shape (n_gammas,), default=(1.0,)
        Values of gamma to try, as multiples of `gamma`; with ``gamma=1.0`` they are the values
        themselves. A larger one is a narrower kernel. Each takes one more pass over the samples.
    scoring : str, callable or None, default=None
        Score of the outputs of samples left out; larger is better. A name of
        :func:`sklearn.metrics.get_scorer_names` or ``scorer(estimator, outputs, y)``, which also
        gets ``sample_weight`` if weights differ. (Whole ones, as of copies, are repeated samples
        instead, up to 131,072.) None is the negative mean squared error of the outputs.
    n_left_out : int, "auto" or None, default="auto"
        Number of distinct samples that are left out, one at a time, drawn by their content; None
        means all. A sample counts in each of its classes, of which none is missing: the last one
        may add a few. ``"auto"`` is 1,000. With one width and without `scoring` it starts with 256
        and doubles this number until no penalty can be better than the best by more than a
        hundredth of the error, within two standard errors of the difference.
    centers : str or array-like of shape (m, n_features), default="stratified"
        See :class:`RBFLayer`.
    kernel : str or callable, default="gaussian"
        See :class:`RBFLayer`.
    metric : {"euclidean", "manhattan"}, default="euclidean"
        The distance.
    gamma : float, "scale", "auto" or "median", default="scale"
        See :class:`RBFLayer`.
    fit_intercept : bool, default=True
        Whether the outputs have an intercept.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied with the sample weights, in training and in the error.
        `gamma` and the choice of centers ignore them.
    backend : str, default="auto"
        Where the layer is evaluated.
    precision : {"auto", "exact", "float32", "tf32", "float64"}, default="auto"
        Arithmetic of the distances.
    n_jobs : int or None, default=None
        Maximum number of threads; None and -1 use all that NumPy, Numba and joblib allow.
    random_state : int, RandomState or None, default=None
        Seed of the center rule, and of the sample for ``gamma="median"``.
    verbose : bool or int, default=False
        Print a line for each step of ``fit``. ``set_callbacks(ProgressBar())`` draws a bar instead,
        with ``sklearn.callback`` of scikit-learn 1.9.

    Attributes
    ----------
    alpha_ : float
        The penalty chosen.
    gamma_ : float
        The gamma chosen, as a number.
    best_params_ : dict
        Both, as parameters of :class:`RBFClassifier`.
    best_score_ : float
        The score of ``best_params_``.
    cv_results_ : dict of ndarrays
        The path, one entry per pair of width and penalty: ``param_gamma``, ``param_alpha``,
        ``mean_test_score`` and ``rank_test_score``, ready for a ``pandas.DataFrame``.
    n_left_out_ : int
        Number of samples that were left out.
    classes_ : ndarray of shape (n_classes,)
    centers_ : ndarray of shape (m, n_features), or CSR
    center_indices_ : ndarray of shape (m,)
        Rows of the training data that became centers; absent if the centers are not samples.
    coef_ : ndarray of shape (n_outputs, m)
    intercept_ : ndarray of shape (n_outputs,)
    temperature_ : float
        Number that ``predict_proba`` divides the outputs by before the softmax (for two classes the
        logistic function).
    backend_, backend_info_ : str
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only if X had string feature names.

    See Also
    --------
    RBFClassifier : The same network for a penalty and a width that are known.

    Notes
    -----
    A sample is left out with all of its copies: those of its weight, and equal samples of the
    same class. If it is a center, this center is left out with it: a sample that is also a center
    is fitted unrealistically well, which would bias the choice towards too large penalties. The
    other centers, the width and the penalty stay fixed when a sample is left out.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpurbf import RBFClassifierCV
    >>> X, y = load_digits(return_X_y=True)
    >>> model = RBFClassifierCV(300, gammas=[0.5, 1, 2], random_state=0).fit(X[:1200], y[:1200])
    >>> model.score(X[1200:], y[1200:]) > 0.93
    True
    """

    def __init__(
        self,
        n_centers: choices.Count = "auto",
        *,
        alphas: choices.Values | None = None,
        gammas: choices.Values = (1.0,),
        scoring: str | Callable[..., float] | None = None,
        n_left_out: int | Literal["auto"] | None = "auto",
        centers: choices.Centers = "stratified",
        kernel: choices.Kernel = "gaussian",
        metric: choices.Metric = "euclidean",
        gamma: choices.Gamma = "scale",
        fit_intercept: bool = True,
        class_weight: choices.ClassWeight = None,
        backend: choices.Backend = "auto",
        precision: choices.Precision = "auto",
        n_jobs: int | None = None,
        random_state: choices.RandomState = None,
        verbose: bool | int = False,
    ) -> None:
        self.n_centers = n_centers
        self.alphas = alphas
        self.gammas = gammas
        self.scoring = scoring
        self.n_left_out = n_left_out
        self.centers = centers
        self.kernel = kernel
        self.metric = metric
        self.gamma = gamma
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.backend = backend
        self.precision = precision
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @transaction
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RBFClassifierCV:
        """Choose the centers, train with all widths and penalties and keep the best.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
            float64, float32 and uint8 are used as they are, other dtypes as float64.
        y : array-like of shape (n_samples,)
            Labels that scikit-learn's classifiers take (integers, strings, booleans, dates), of two
            classes or more.
        sample_weight : array-like of shape (n_samples,), optional
            Not negative; weight 2 is the same as giving a sample twice, 0 as leaving it out.

        Returns
        -------
        self : RBFClassifierCV

        Raises
        ------
        ValueError, TypeError
            For bad data or parameters; the message says what to do.
        BackendUnavailable
            If the backend named cannot run here.
        """
        alphas = np.logspace(-6, 0, 20) if self.alphas is None else self.alphas
        alphas, factors = _positive("alphas", alphas), _positive("gammas", self.gammas)
        if self.n_left_out is not None:
            check_option_or_number("n_left_out", self.n_left_out, ("auto",), numbers.Integral, 1)
        score = None if self.scoring is None else check_scoring(self, get_scorer(self.scoring))
        rows = training_data(self, X, y, sample_weight)
        X = rows.X
        with limited(self.n_jobs), finite(self, X):
            layer = self._choose_layer(rows)
            with np.errstate(over="ignore"):
                gammas = _positive(f"gammas times gamma={self.gamma_:g}", factors * self.gamma_)
            rows, _ = rows.with_class_weights(self)
            chosen = self._choose_left_out(rows)
            batches = list(gen_batches(X.shape[0], _ROWS_A_STEP))
            passes = ((gamma, *each) for gamma in gammas for each in read_ahead(X, batches))
            n_tasks = len(gammas) * len(batches)
            tasks = steps(self, passes, n_tasks, X, y, "hidden layer", stops=False)
            trials: list[Trial] = []
            for gamma, batch, part in tasks:
                if batch.start == 0:
                    activation = layer.activation._replace(gamma=float(gamma))
                    given = layer.centers, activation, layer.quantizations
                    self._keep_layer(self._new_layer(*given))
                    normal = self._begin(alphas.min(), X, rows.weights)
                self._add(normal, part, rows, batch)
                if batch is batches[-1]:
                    normal = self._checked_sums(normal, rows, batches)
                    trials.append(self._try(normal, alphas, X, chosen, score))
            self._keep_best(trials, alphas, X)
        return self

    @stage("prepare", "samples to leave out")
    def _choose_left_out(self, rows: Rows) -> Chosen:
        """Choose distinct samples by their content: order and repetition do not matter."""
        most = _MOST if self.n_left_out == "auto" else self.n_left_out or len(rows.y)
        found = Race(0, by_class=True, wanted=most).over(*rows[:3])
        return found, copies_of(found, rows)

    @stage("output training")
    def _try(
        self, normal: NormalEquations, alphas: np.ndarray, X: Any, chosen: Chosen, score: Any
    ) -> Trial:
        """Scores of all penalties for this width; the outputs and weights of the best."""
        (found, copies), path = chosen, RidgePath(normal, alphas, self.fit_intercept)
        # All widths are judged by the same samples, and scorers get the maximum number.
        fewer = self.n_left_out == "auto" and score is None and len(self.gammas) == 1
        T, layer = one_hot(found.labels, len(self.classes_)), self._layer()
        means, mass = of_all_classes(found, T)
        parts, n = [], 0
        while n < len(T):
            some = slice(n, found.whole(max(_FEWEST, 2 * n) if fewer else n + _ROWS_LEFT_OUT))
            n = some.stop
            part, own = found.at(some), copies_within(copies, some)
            left_out = leave_out(normal, layer, part, X[part.first], own)
            with layer.allocator():
                centers = left_out.own_centers(layer)
                H, _ = of_all_classes(part, left_out.H)
                parts.append(path.leave_one_out(H, means[some], mass[some], centers))
            if fewer and settled(np.concatenate(parts, axis=1), T[:n], found.mass[:n]):
                break
        outputs, T, found = np.concatenate(parts, axis=1), T[:n], found.at(slice(n))
        del parts
        check_finite(self, X, outputs=outputs)
        if score is None:
            scores = -np.average(squared_errors(outputs, T), axis=1, weights=found.mass)
        else:
            known = LeftOutOutputs(self.classes_, found.labels, found.mass)
            scores = np.array([known.scored(score, each) for each in outputs])
        best = int(np.argmax(scores))
        return Trial(layer, found, scores, outputs[best].copy(), *path.solution(best))

    @stage("back and evaluate")
    def _keep_best(self, trials: list[Trial], alphas: np.ndarray, X: Any) -> None:
        """Keep the model of the best trial, the path and the temperature."""
        scores = np.concatenate([trial.scores for trial in trials])
        best = trials[int(np.argmax([trial.scores.max() for trial in trials]))]
        self.alpha_ = float(alphas[best.scores.argmax()])
        self.gamma_ = best.layer.activation.gamma
        self.best_params_ = {"alpha": self.alpha_, "gamma": self.gamma_}
        self.best_score_ = float(best.scores.max())
        self.cv_results_ = {
            "param_gamma": np.repeat([each.layer.activation.gamma for each in trials], len(alphas)),
            "param_alpha": np.tile(alphas, len(trials)),
            "mean_test_score": scores,
            "rank_test_score": 1 + (scores[:, None] < scores).sum(axis=1),
        }
        self._keep_layer(best.layer)
        self.n_left_out_ = len(best.outputs)
        judged = best.outputs, best.found.labels, best.found.mass
        self._keep_outputs(best.W, best.intercept, X, *judged)

    def plot_path(self, ax: Any = None) -> Any:
        """Plot the score over the penalties, a line for each width, and the pair chosen.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        ax : matplotlib Axes

        Raises
        ------
        ImportError
            If Matplotlib is not installed.
        """
        check_is_fitted(self)
        ax = ax or new_axes("plot_path")
        found = self.cv_results_
        for gamma in dict.fromkeys(found["param_gamma"]):
            rows = np.flatnonzero(found["param_gamma"] == gamma)
            rows = rows[np.argsort(found["param_alpha"][rows])]
            x, score = found["param_alpha"][rows], found["mean_test_score"][rows]
            ax.plot(x, score, ".-", label=f"gamma = {gamma:.3g}")
        ax.plot(self.alpha_, self.best_score_, "o", color="black", mfc="none", label="chosen")
        name = "negative mean squared error" if self.scoring is None else str(self.scoring)
        ax.set(xscale="log", xlabel="alpha", ylabel=f"leave-one-out {name}")
        ax.legend()
        return ax


def squared_errors(outputs: np.ndarray, T: np.ndarray) -> np.ndarray:
    """The mean squared error (p, N) of each row of outputs (p, N, k)."""
    # One penalty at a time: all squares would take as much memory as the outputs.
    return np.stack([np.square(each - T).mean(axis=1) for each in outputs])


def settled(outputs: np.ndarray, T: np.ndarray, weights: np.ndarray) -> bool:
    """Whether more rows would hardly change which of the outputs (p, N, k) is best.

    All outputs are judged by the same rows, so only the noise of their differences from the best
    counts. No other may be better by more than a hundredth of the best error, even if its
    difference is two standard errors smaller than measured.
    """
    errors = squared_errors(outputs, T)
    found = np.average(errors, axis=1, weights=weights)
    best = int(found.argmin())
    ahead, each = found - found[best], errors - errors[best]
    noise = np.sqrt(np.square(weights * (each - ahead[:, None])).sum(axis=1)) / weights.sum()
    return bool((2 * noise - ahead).max() <= _TOLERANCE * found[best])


class LeftOutOutputs(LogProbaMixin, ClassifierMixin, BaseEstimator):
    """A fitted classifier for scorers, whose "samples" are already outputs (N, k).

    ``codes`` (N,) are their class numbers, with which probabilities are calibrated.
    """

    def __init__(self, classes: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> None:
        self.classes_, self.codes, self.weights = classes, codes, weights

    def scored(self, scorer: Callable[..., float], outputs: np.ndarray) -> float:
        """The scorer's value; the scorer gets the weights if they differ.

        Whole weights, as of copies, are repeated samples, as the scorer may not take weights.
        """
        options = {}
        if np.ptp(self.weights):
            whole = (self.weights == np.rint(self.weights)).all()
            if whole and self.weights.sum() <= _MOST_REPEATED:
                rows = np.repeat(np.arange(len(outputs)), self.weights.astype(np.intp))
                same = LeftOutOutputs(self.classes_, self.codes[rows], np.ones(len(rows)))
                return same.scored(scorer, outputs[rows])
            options = {"sample_weight": self.weights}
        try:
            score = float(scorer(self, outputs, self.classes_[self.codes], **options))
            if not np.isfinite(score):
                raise ValueError(
                    f"{scorer} gives {score} for samples left out: use another scoring."
                )
        except ValueError as error:
            if (n_found := len(np.unique(self.codes))) == len(self.classes_):
                raise
            raise ValueError(
                f"{scorer} cannot score the {len(outputs)} samples left out, which are of "
                f"{n_found} of {len(self.classes_)} classes: {error} A larger n_left_out, or None "
                "for all samples, may leave out some of every class."
            ) from error
        return score

    def decision_function(self, outputs: np.ndarray) -> np.ndarray:
        """One column for two classes, as classifiers have it."""
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The class with the largest output."""
        return chosen(self.classes_, winning_class(outputs))

    def predict_proba(self, outputs: np.ndarray) -> np.ndarray:
        """The softmax of the outputs over their best temperature."""
        return probabilities(outputs, fit_temperature(outputs, self.codes, self.weights))


class Trial(NamedTuple):
    """Result of one width: scores of all penalties; outputs and weights of the best one.

    ``found`` are the samples that were left out.
    """

    layer: HiddenLayer
    found: Distinct
    scores: np.ndarray
    outputs: np.ndarray
    W: np.ndarray
    intercept: np.ndarray


def _positive(name: str, values: Any) -> np.ndarray:
    """Check that values are one or more numbers > 0."""
    found = np.asarray(values)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be a list of numbers > 0, got {values!r}.")
    for value in found.tolist():
        check_number(f"Each of {name}", value, numbers.Real, 0, above=True)
    return found.astype(np.float64)
