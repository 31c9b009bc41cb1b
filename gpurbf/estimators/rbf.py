"""RBFClassifier: centers, hidden layer and a ridge-trained output, the classical RBF network."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, gen_batches
from sklearn.utils.metaestimators import available_if

from gpurbf.centers import center_finder, own_centers
from gpurbf.centers.sample import Distinct, Race
from gpurbf.data.hashes import finder, row_hashes
from gpurbf.data.row_blocks import read_ahead
from gpurbf.estimators import _choices as choices
from gpurbf.estimators._base import CallbackSupportMixin, say, steps, transaction, with_callbacks
from gpurbf.estimators._left_out import LeftOut, copies_of, leave_out, of_all_classes
from gpurbf.estimators._rbf_outputs import RBFOutputsMixin
from gpurbf.estimators._validation import Rows, finite, stream_data, training_data
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.errors import warn
from gpurbf.runtime.stages import stage
from gpurbf.runtime.threads import limited
from gpurbf.solvers import SOLVERS, automatic, make_solver
from gpurbf.solvers.cg import CGSolution
from gpurbf.solvers.one_hot import mean_targets, one_hot, votes
from gpurbf.solvers.ridge import RidgeSolution
from gpurbf.solvers.ridge.normal_equations import NormalEquations

# Rows between two reports of progress.
_ROWS_A_STEP = 8192
# If most left-out rows are centers, which cost more, this many are enough.
_ROWS_AMONG_CENTERS = 500
_MOST_LEFT_OUT = 800
# Chooses the samples to leave out: the same ones from all samples at once and from batches.
CALIBRATION = Race(0, by_class=True, wanted=_MOST_LEFT_OUT)
# A first batch of up to this many samples, or up to as many as there are centers, is judged again
# together with the next batch.
_MOST_HELD = 1000


def _joined(held: Rows, later: Rows, n: int) -> list[Rows]:
    """Join rows with n later ones; the rest of those, in a file perhaps, stays apart."""
    first, rest = later.at(slice(n)), later.at(slice(n, None))
    parts = held.X, first.X
    X = sp.vstack(parts, "csr") if any(map(sp.issparse, parts)) else np.concatenate(parts)
    own = [np.ones(len(a.y)) if a.weights is None else a.weights for a in (held, first)]
    weights = None if held.weights is first.weights is None else np.concatenate(own)
    joined = Rows(X, np.concatenate([held.y, first.y]), weights)
    return [joined, rest] if len(rest.y) else [joined]


def _takes_batches(estimator: Any) -> bool:
    """Whether batches can be added up; an unknown solver is refused later, by the call itself."""
    solver = estimator.solver
    solver = SOLVERS.get(solver) if isinstance(solver, str) else solver
    if getattr(solver, "needs", "sums") != "sums":
        raise AttributeError(
            "partial_fit needs solver='ridge', or a solver of yours that needs sums, got "
            f"{estimator.solver!r}."
        )
    return True


class RBFClassifier(RBFOutputsMixin, CallbackSupportMixin, ClassifierMixin, BaseEstimator):
    """Radial basis function network: m centers, a hidden layer, linear outputs.

    The outputs minimise the squared error to the classes' 0/1 targets (-1/1 for two classes) with
    a ridge penalty. The hidden layer is computed and used tile by tile. The solvers ``"cg"`` and
    ``"lms"`` store it if there is room, ``"ridge"`` never: beyond the input it takes about 12 m²
    bytes, 8 bytes for each label and what ``config_context(memory=...)`` allows, also if the input
    is a ``numpy.memmap``. If a sample has the weight 0, a copy of the others is added.

    Parameters
    ----------
    n_centers : int, "auto" or "all", default="auto"
        Number of centers m. ``"auto"``: 1,000, or all distinct samples if there are fewer.
        ``"all"``: all distinct samples, with a rule that draws samples; see `solver`. If there are
        fewer distinct samples than `n_centers`, such a rule takes all of them and warns.
    centers : str or array-like of shape (m, n_features), default="stratified"
        A rule of ``gpurbf.centers.CENTERS`` or the centers themselves, see
        :class:`RBFLayer`.
    kernel : str or callable, default="gaussian"
        ``"gaussian"`` is exp(-gamma d²). Others are ``"laplacian"``, ``"triangular"``,
        ``"multiquadric"``, ``"inverse-multiquadric"``, ``"thin-plate"`` or a function of d², see
        :class:`RBFLayer`.
    metric : {"euclidean", "manhattan"}, default="euclidean"
        The distance d.
    gamma : float, "scale", "auto" or "median", default="scale"
        Scale of the distances; ``"scale"`` is 1 / (n_features * X.var()), see :class:`RBFLayer`.
    solver : {"auto", "ridge", "cg", "lms", "one-hot"} or object, default="auto"
        How the output weights are trained. ``"ridge"``: in closed form. ``"cg"``: by conjugate
        gradients, for any number of centers. ``"auto"``: ``"ridge"`` for up to 10,000 centers,
        ``"cg"`` for more. ``"lms"``: by the on-line delta rule with its default rate and epochs,
        over the samples in random order.
        ``"one-hot"``: each center votes for its own class, which needs centers that are samples; if
        the rule ignores classes, for that of most weight among the samples equal to it. An object
        of ``gpurbf.solvers`` has its own parameters:
        ``LMS(learning_rate=0.01, n_epochs=5)``.
    alpha : float, default=1e-6
        Penalty of ``"ridge"`` and ``"cg"``, > 0, relative to the mean diagonal of HᵀH (of the
        centred H if there is an intercept). If all samples are centers and the kernel is positive
        definite, that of ``"cg"`` is relative to the sum of the weights.
    fit_intercept : bool, default=True
        Whether the outputs of ``"ridge"`` and ``"cg"`` have an intercept.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied with the sample weights in training. `gamma` and the
        choice of centers ignore them.
    backend : str, default="auto"
        Where the layer is evaluated: ``"numpy"``, ``"mkl"``, ``"numba"``, ``"cupy"``,
        ``"numba-cuda"`` or ``"auto"``.
    precision : {"auto", "exact", "float32", "tf32", "float64"}, default="auto"
        Arithmetic of the distances; ``"auto"`` is exact on small integers, see :class:`RBFLayer`.
    n_jobs : int or None, default=None
        Maximum number of threads; None and -1 use all that NumPy, Numba and joblib allow.
    random_state : int, RandomState or None, default=None
        Seed of the center rule, of the sample for ``gamma="median"``, and of the order in which
        ``"lms"`` sees the samples.
    verbose : bool or int, default=False
        Print a line for each step of ``fit``. ``set_callbacks(ProgressBar())`` draws a bar instead,
        with ``sklearn.callback`` of scikit-learn 1.9.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    centers_ : ndarray of shape (m, n_features), or CSR
    center_indices_ : ndarray of shape (m,)
        Rows of the training data that became centers; absent if the centers are not samples.
    gamma_ : float
    coef_ : ndarray of shape (n_outputs, m)
        Output weights; one output for two classes, else one per class.
    intercept_ : ndarray of shape (n_outputs,)
    temperature_ : float
        Number that ``predict_proba`` divides the outputs by before the softmax (for two classes the
        logistic function).
    backend_, backend_info_ : str
        The backend that ran; its kernel, its arithmetic and the reason for its choice.
    solver_info_ : str
        The solver that ran and why; for ``"cg"`` also the system solved, how H was kept and the
        residual.
    n_iter_ : int
        Iterations of ``"cg"``; absent for other solvers.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only if X had string feature names.

    Notes
    -----
    ``"ridge"`` with 256 centers or more rounds H to 15 bits and then sums HᵀH exactly, unless
    `precision` forces another arithmetic. Rounding, to 15 bits or to float32, acts like an
    additional penalty, which is estimated from the sums. If it exceeds a tenth of the penalty, or
    may cost more than 2 % of the squared residuals, or if there are no more samples than centers,
    the sums are made again in float64. Copies of a sample count once if 64 evenly spaced samples
    show that there are copies. Then the model also predicts in float64, and ``solver_info_`` says
    so.

    ``"cg"`` minimises the same objective as ``"ridge"``, unless all samples are centers and the
    kernel is positive definite. Then H = K, and it solves kernel ridge regression, whose penalty is
    λ WᵀKW instead of ``λ |W|²``. It stops at a relative residual of 0.01; see
    :class:`gpurbf.solvers.cg.CG` for this and for the memory that H takes.

    Probabilities are the softmax of the outputs divided by one number, ``temperature_``; for two
    classes that of the second is 1 / (1 + exp(-output / temperature)). So their order is that of
    ``decision_function``. The temperature is fitted on up to 800 training samples,
    to the outputs that the model would give if a sample had been left out. With the sample, its
    copies are left out and, if it is a center, this center. ``"ridge"`` has a closed form for these
    outputs; ``"cg"`` uses a closed form or a solution without these samples. With more than 512
    centers that are not all samples that form is an estimate, and keeps the center. ``"lms"`` and
    ``"one-hot"`` use the outputs of up to 800 training samples as they are; those that are centers
    are left out if more than 400 others remain. For isotonic or cross-validated calibration use
    :class:`sklearn.calibration.CalibratedClassifierCV`.

    References
    ----------
    Broomhead and Lowe, "Multivariable functional interpolation and adaptive networks", 1988.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpurbf import RBFClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> RBFClassifier(300, random_state=0).fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.93
    True
    """

    _written: ClassVar = RBFOutputsMixin._written | {
        "_left_out": (
            lambda kept: (tuple(kept.found), *kept[1:]),
            lambda state: LeftOut(Distinct(*state[0]), *state[1:]),
        )
    }

    def __init__(
        self,
        n_centers: choices.Count = "auto",
        *,
        centers: choices.Centers = "stratified",
        kernel: choices.Kernel = "gaussian",
        metric: choices.Metric = "euclidean",
        gamma: choices.Gamma = "scale",
        solver: choices.Solver = "auto",
        alpha: float = 1e-6,
        fit_intercept: bool = True,
        class_weight: choices.ClassWeight = None,
        backend: choices.Backend = "auto",
        precision: choices.Precision = "auto",
        n_jobs: int | None = None,
        random_state: choices.RandomState = None,
        verbose: bool | int = False,
    ) -> None:
        self.n_centers = n_centers
        self.centers = centers
        self.kernel = kernel
        self.metric = metric
        self.gamma = gamma
        self.solver = solver
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.backend = backend
        self.precision = precision
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @transaction
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RBFClassifier:
        """Choose the centers and train the outputs.

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
        self : RBFClassifier

        Raises
        ------
        ValueError, TypeError
            For bad data or parameters; the message says what to do.
        BackendUnavailable
            If the backend named cannot run here.
        """
        self._solver()  # before any work
        rows = training_data(self, X, y, sample_weight)
        X = rows.X
        with limited(self.n_jobs), finite(self, X):
            self._choose_layer(rows)
            solver = self._solver(self.centers_.shape[0])
            rows, factors = rows.with_class_weights(self)
            for name in ("_normal", "_left_out", "_held"):
                self.__dict__.pop(name, None)
            if solver.needs == "sums":
                normal = self._begin(getattr(solver, "alpha", 0.0), X, rows.weights)
                batches, added = list(gen_batches(X.shape[0], _ROWS_A_STEP)), []
                parts = read_ahead(X, batches)
                for batch, part in steps(self, parts, len(batches), X, y, "hidden layer"):
                    self._add(normal, part, rows, batch)
                    added.append(batch)
                if len(added) < len(batches):  # a callback has ended the fit
                    n, k = added[-1].stop, len(self.classes_)
                    rows = rows.at(slice(n))
                    ended = f"a callback ended the fit after {n:,} of {X.shape[0]:,} samples"
                    self.solver_info_ += f"; {ended}"
                    if (there := len(np.unique(rows.y))) < k:
                        warn(f"{ended}, which have {there} of {k} classes.")
                normal = self._checked_sums(normal, rows, added)
                self._solve(solver, normal, self._choose_left_out(normal, rows), X, keep=False)
            elif solver.needs == "products":
                T = one_hot(rows.y, len(self.classes_))
                places = own_centers(X, self._layer())
                system = solver.system(self._layer(), X, T, rows.weights, places)
                if system.layer is not self._layer():  # its float32 was too coarse
                    self._keep_layer(system.layer)
                say(self, system.info)  # it may take long; if H is made anew, this says why
                found = steps(self, solver.iterations(system), None, X, y, "conjugate gradients")
                self._take(deque(found, maxlen=1).pop(), rows)
            else:
                for _ in steps(self, (None,), 1, X, y, "output training", stops=False):
                    self._train(solver, rows, factors)
        return self

    @available_if(_takes_batches)
    @transaction
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> RBFClassifier:
        """Train on one more batch; in the end the outputs are those of one fit on all batches.

        The first batch fixes the centers and gamma (pass `centers` as an array to choose them
        yourself). Later batches are added to the sums HᵀH and HᵀT, which are kept (8 m² bytes,
        twice that during a call, which adds to a copy). H of up to 800 samples of all batches is
        kept too: it calibrates probabilities, on the same samples that one fit would use. If the
        first batch is too small to judge rounding, its samples (up to 1,000, or as many as there
        are centers) are kept and used again with the next batch.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        classes : array-like of shape (n_classes,), optional
            All labels of the stream; required in the first call.
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        self : RBFClassifier

        Raises
        ------
        AttributeError
            If the solver is neither "ridge" nor one of your own that needs only sums.
        ValueError
            If `classes` is missing or a label is not among them.

        Warns
        -----
        UserWarning
            After ``fit``, which keeps no sums: the outputs are trained anew with its centers. If
            alpha is so much lower than before that the rounding of earlier batches matters.
        """
        first = not hasattr(self, "centers_")
        chooses = isinstance(self.centers, str) or isinstance(self.gamma, str)
        learns = "Centers or their width are chosen from it alone" if chooses else ""
        rows = stream_data(self, X, y, classes, sample_weight, first=first, learns=learns)
        if not len(rows.y):  # no sample has a weight
            return self
        solver = self._solver()
        with limited(self.n_jobs), finite(self, rows.X):
            if first:
                self._choose_layer(rows)
            elif not hasattr(self, "_normal"):
                warn(
                    "fit keeps no sums to add to: this partial_fit keeps the centers that fit "
                    "chose and trains the outputs anew. Call partial_fit from the first batch on."
                )
            # Batches are added to copies of the model's sums, in case this is interrupted.
            normal: NormalEquations | None = getattr(self, "_normal", None)
            left_out: LeftOut | None = getattr(self, "_left_out", None) if normal else None
            alpha, batches = getattr(solver, "alpha", 0.0), [rows.with_class_weights(self)[0]]
            most_held = max(_MOST_HELD, self.centers_.shape[0])
            if held := self.__dict__.pop("_held", None):
                self._wide, self._cache = False, None
                normal = left_out = None
                batches = _joined(Rows(*held), batches[0], most_held)
            for rows in batches:
                X, before, whole = rows.X, normal, slice(0, len(rows.y))
                normal = self._begin(alpha, X, rows.weights) if before is None else before.copy()
                rounded_for = normal.alpha
                normal.alpha = min(alpha, rounded_for)
                self._add(normal, X, rows, whole)
                normal = self._checked_sums(normal, rows, [whole], before)
                if normal.alpha < alpha < rounded_for:
                    warn(
                        f"The sums of earlier batches were rounded for alpha={rounded_for:g}, "
                        f"which acts like an additional penalty with alpha={alpha:g}; from this "
                        "batch on they are not. Train on all batches with the lower alpha instead."
                    )
                if before is None and alpha and not normal.alpha and X.shape[0] <= most_held:
                    # That a short first batch needs sums without the grid must not decide for the
                    # whole stream: a copy is kept (the caller may overwrite the arrays), and is
                    # judged again together with the next batch.
                    held = X if sp.issparse(X) else np.asarray(X), rows.y, rows.weights
                    self._held = tuple(None if part is None else part.copy() for part in held)
                more = self._choose_left_out(normal, rows)
                more = more._replace(H=to_host(more.H))
                left_out = more if left_out is None else left_out.merged(more, CALIBRATION)
            assert normal is not None and left_out is not None  # there is a batch
            self._solve(solver, normal, left_out, X, keep=True)
            self._normal, self._left_out = normal, left_out
        return self

    def _solver(self, n_centers: int | None = None) -> Any:
        """Make and check the solver that is asked for; sets ``solver_info_``."""
        solver, self.solver_info_ = self.solver, f"solver={self.solver!r}"
        if isinstance(solver, str) and solver == "auto":
            solver, why = "ridge", "which a stream can go on with"
            if n_centers is not None:
                solver, why = automatic(n_centers)
            self.solver_info_ = f"auto: {solver}, {why}"
        self.__dict__.pop("n_iter_", None)
        return make_solver(solver, alpha=self.alpha, fit_intercept=self.fit_intercept)

    @stage("prepare", "samples to leave out")
    def _choose_left_out(self, normal: NormalEquations, rows: Rows) -> LeftOut:
        found = CALIBRATION.over(*rows[:3])
        return leave_out(normal, self._layer(), found, rows.X[found.first], copies_of(found, rows))

    @stage("output training")
    def _solve(
        self, solver: Any, normal: NormalEquations, left_out: LeftOut, X: Any, *, keep: bool
    ) -> None:
        """Output weights from the sums, probabilities from leave-one-out outputs of some rows."""
        if not normal.weight:
            raise ValueError(
                "The weights of all samples so far, times those of their classes (class_weight), "
                "are 0: there is nothing to train on. Begin with samples of a weight > 0."
            )
        if getattr(solver, "alpha", 0.0) and not normal.alpha:
            self.solver_info_ += "; sums in float64: rounded, they would add to the penalty"
        solution: RidgeSolution = solver.solve(normal, keep=keep)
        # Each left-out row that is a center adds a vector to solve for.
        if np.mean(left_out.centers >= 0) > 0.5:
            left_out = left_out.first(_ROWS_AMONG_CENTERS)
        codes, weights = left_out.found.labels, left_out.found.mass
        T, layer = one_hot(codes, len(self.classes_)), self._layer()
        with layer.allocator():
            H, own = layer.xp.asarray(left_out.H), left_out.own_centers(layer)
            H, means, mass = of_all_classes(left_out.found, H, T)
            scores = solution.leave_one_out(H, means, mass, own)
        self._keep_outputs(solution.W, solution.intercept, X, scores, codes, weights)

    def _take(self, found: CGSolution, rows: Rows) -> None:
        """Take the output weights; fit the temperature to outputs without the samples."""
        W, intercept = found.weights()
        self.n_iter_ = found.n_iter
        self.solver_info_ += f": {found.info}"
        chosen = self._judged(rows)
        T = one_hot(chosen.labels, len(self.classes_))
        scores = found.left_out(chosen.first, *of_all_classes(chosen, T))
        self._keep_outputs(W, intercept, rows.X, scores, chosen.labels, chosen.totals)

    def _judged(self, rows: Rows) -> Distinct:
        """Samples whose outputs calibrate probabilities."""
        chosen = CALIBRATION.over(*rows[:3])
        # A sample that is a center is fitted unrealistically well: others are used if there are
        # enough.
        others = center_finder(self._layer())(rows.X[chosen.first]) < 0
        return chosen.at(others) if 2 * others.sum() > _MOST_LEFT_OUT else chosen

    @stage("output training")
    def _train(self, solver: Any, rows: Rows, factors: np.ndarray | None) -> None:
        """Output weights by a solver that sees samples one by one."""
        layer, n_classes, (X, codes, weights, places) = self._layer(), len(self.classes_), rows
        indices = getattr(self, "center_indices_", None)
        if indices is not None and places is not None:
            indices = np.searchsorted(places, indices)
        labels = None if indices is None else codes[indices]
        if labels is not None and self.centers in ("random", "fsvc"):  # which ignore classes
            # Of equal samples the first would decide: their order must not.
            found = Race(0, by_class=True).over(X, codes, weights)
            places = finder(row_hashes(X[indices], 0))(found.hashes)
            mass, on = np.zeros((len(labels), n_classes)), places >= 0
            mass[places[on], found.labels[on]] = found.totals[on]
            # Weights are all 0 if those of the classes are.
            labels = np.where(mass.any(axis=1), mass.argmax(axis=1), labels)
        start = None if labels is None else votes(labels, n_classes, factors)
        if start is None and solver.needs == "center targets":
            raise ValueError(
                f"solver={self.solver!r} needs centers that are samples, whose classes are known: "
                "choose a center rule that takes samples, or solver='ridge'."
            )
        # By their values, so that the order of the file does not matter; copies come together.
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        keys = row_hashes(X, seed)
        order, T = np.lexsort((codes, keys)), mean_targets(codes, n_classes, keys, weights)
        W = solver.train(layer, X, T, weights, start=start, order=order)
        chosen = self._judged(rows)
        judged = layer.matvec(X[chosen.first], W), chosen.labels, chosen.totals
        self._keep_outputs(W, np.zeros(W.shape[1]), X, *judged)
