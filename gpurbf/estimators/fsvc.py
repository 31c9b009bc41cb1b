"""FSVC: support vectors chosen in one pass, one radius, one rule to train the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from gpurbf.estimators._arrays import where_X_is
from gpurbf.estimators._base import CallbackSupportMixin, transaction, with_callbacks
from gpurbf.estimators._fsvc_learning import (
    FSVCLearningMixin,
    check_fsvc_parameters,
    check_fsvc_solver,
    plot_radius_path,
)
from gpurbf.estimators._validation import stream_data, training_data
from gpurbf.runtime.arrays import chosen
from gpurbf.runtime.errors import warn
from gpurbf.runtime.stages import stage


class FSVC(FSVCLearningMixin, CallbackSupportMixin, ClassifierMixin, BaseEstimator):
    """Fast support vector classifier: centers in one pass, one radius, one rule for the outputs.

    One pass over the samples keeps those that no center so far covers: x becomes a center if
    ``sum_c phi(d(x, c)) < overlap``. Centers feed a layer of the same units, whose outputs are
    trained by one rule. R. and I. Dogaru's recipe as published is :meth:`published`, its variant
    of 2018 :meth:`sfsvc`; the defaults go further. Not the later method of the same name by
    Fernandez-Delgado et al. (2022).

    Parameters
    ----------
    radius : float, "auto" or "ratio", default="auto"
        Radius r of the units, in the units of the data. ``"auto"`` searches the one with the best
        accuracy on a fifth of the samples (of each class), which for that time choose no center and
        train nothing; ``"ratio"`` bisects for one that makes 2 to 5 % of the samples centers.
    overlap : float, default=1.0
        Activity below which a sample is novel.
    kernel : {"gaussian", "triangular"}, default="gaussian"
        Unit phi(d): exp(-d² / (2 r²)) or max(0, 1 - d / (sqrt(2 pi) r)).
    metric : {"euclidean", "manhattan", "sqeuclidean"}, default="euclidean"
        Distance d: with its root, the sum of absolute differences, or (SFSVC) the square in place
        of the distance.
    selection : {"error", "pass", "per-class"}, default="error"
        ``"error"`` takes a novel sample only if the network so far gets it wrong or nearly: centers
        vote for their classes with their activations, and the sample's class must not lead the
        best other one by a tenth of all activity. ``"pass"`` ignores the labels, as published;
        ``"per-class"`` makes one pass over each class on its own.
    eval_radius : float, "auto" or None, default="auto"
        Radius of the units once they are chosen; None: `radius`. Wider units are usually better for
        trained outputs; ``"auto"`` searches it as `radius`, also where `radius` is a number.
    solver : {"ridge", "lms", "one-hot"} or object, default="ridge"
        How outputs are trained: ``"one-hot"``, each center votes for its own class;
        ``"lms"``, from there by the on-line delta rule, sample by sample; ``"ridge"``, least
        squares in closed form. None has a bias. An object of ``gpurbf.solvers`` brings its
        own parameters: ``LMS(0.01, n_epochs=3)``.
    learning_rate : float, default=0.1
        Of ``"lms"``; below 2 / max sum_c phi² or the weights overflow, 0 leaves them.
    n_epochs : int, default=10
        Of ``"lms"``, at the most if a radius is searched: the best epoch counts.
    alpha : float, default=1e-6
        Penalty of ``"ridge"``, relative to the mean diagonal of HᵀH.
    shuffle : bool, default=True
        Whether the samples come in random order, drawn by `random_state` from their values: the
        order they are stored in does not matter, and samples that are equal count once in the pass.
        False: in the order given, as published.
    max_centers : int or None, default=None
        The pass takes no more centers (with ``"per-class"``, an equal share of them a class).
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied with the sample weights; also the weight of the centers'
        votes before training. The choice of centers does not see them.
    backend : str, default="auto"
        Where the layer is evaluated: ``"numpy"``, ``"mkl"``, ``"numba"``, ``"cupy"``,
        ``"numba-cuda"`` or ``"auto"``.
    precision : {"auto", "exact", "float32", "tf32", "float64"}, default="auto"
        Of the distances; ``"auto"`` is exact on small integers, see :class:`RBFLayer`. Centers are
        the same on every backend, those of the pass sample by sample in float64.
    random_state : int, RandomState or None, default=None
        Of the order and of the samples held out.
    outside : {"nearest", "zero"}, default="nearest"
        Scores of a sample that activates no center: ``"nearest"``, the output weights of its
        nearest center, whose class a growing radius would give it; ``"zero"``, 0 for every class,
        so that the first one is predicted, as published.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    centers_ : ndarray of shape (m, n_features)
    center_indices_ : ndarray of shape (m,)
        Samples that became centers, in the order of the pass: their rows in the training data, or
        their places in the stream that ``partial_fit`` saw.
    radius_, eval_radius_ : float
    coef_ : ndarray of shape (n_outputs, m)
        Output weights; one output for two classes (the second less the first), else one a class.
    n_iter_ : int
        Epochs of ``"lms"``; 1 for ``"ridge"``, 0 for ``"one-hot"``.
    n_samples_seen_ : int
    radius_path_ : dict of ndarrays
        What a search tried, one entry a trial: ``radius``, ``eval_radius``, ``n_centers`` (of the
        samples that it used), ``expected_centers`` (of all), ``score`` (validation accuracy),
        ``loss``, ``n_iter``. Absent if nothing was searched.
    backend_, backend_info_ : str
        The backend that ran, and with which kernel, arithmetic and reason.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only if X had string feature names.

    See Also
    --------
    RBFClassifier : Centers by other rules, and these as ``centers="fsvc"`` and ``"fsvc-class"``.

    Notes
    -----
    A weight of 2 is the same as giving a sample twice, 0 as leaving it out, in every step: equal
    samples count once in the pass (up to ``overlap=1`` they never became centers anyway), outputs
    and searches count them by weight, and one ``"lms"`` step of weight w is w steps in succession.
    That holds with ``shuffle=True``; in a given order the result depends on the order.

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
        radius: Any = "auto",
        *,
        overlap: float = 1.0,
        kernel: str = "gaussian",
        metric: str = "euclidean",
        selection: str = "error",
        eval_radius: Any = "auto",
        solver: Any = "ridge",
        learning_rate: float = 0.1,
        n_epochs: int = 10,
        alpha: float = 1e-6,
        shuffle: bool = True,
        max_centers: int | None = None,
        class_weight: Any = None,
        backend: str = "auto",
        precision: str = "auto",
        random_state: Any = None,
        outside: str = "nearest",
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
        self.random_state = random_state
        self.outside = outside

    @classmethod
    def published(
        cls,
        radius: float,
        *,
        overlap: float = 1.0,
        kernel: str = "triangular",
        metric: str = "manhattan",
        learning_rate: float = 0.0,
        n_epochs: int = 1,
        **parameters: Any,
    ) -> FSVC:
        """The recipe as published: samples in the order given, votes or LMS, plain argmax.

        Parameters
        ----------
        radius : float
        overlap, kernel, metric
            See the class; the defaults are those of the later papers.
        learning_rate : float, default=0.0
            0: "no tuning", every center votes for its own class.
        n_epochs : int, default=1
        **parameters
            Others of the class, such as `backend`.

        Returns
        -------
        model : FSVC
        """
        return cls(
            radius,
            overlap=overlap,
            kernel=kernel,
            metric=metric,
            solver="lms" if learning_rate else "one-hot",
            learning_rate=learning_rate,
            n_epochs=n_epochs,
            shuffle=False,
            outside="zero",
            **{"selection": "pass", "eval_radius": None} | parameters,
        )

    @classmethod
    def sfsvc(
        cls, radius: float, *, overlap: float = 1.0, kernel: str = "gaussian", **parameters: Any
    ) -> FSVC:
        """SFSVC of 2018: a pass over each class, the squared Euclidean distance, no training.

        Parameters
        ----------
        radius : float
        overlap, kernel
            See the class.
        **parameters
            Others of the class, such as `backend`.

        Returns
        -------
        model : FSVC
        """
        return cls(
            radius,
            overlap=overlap,
            kernel=kernel,
            metric="sqeuclidean",
            selection="per-class",
            solver="one-hot",
            shuffle=False,
            outside="zero",
            **{"eval_radius": None} | parameters,
        )

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
            Labels of any type, two classes or more.
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
        check_fsvc_parameters(self)
        for attribute in ("_normal", "_selection", "coef_", "radius_path_"):
            self.__dict__.pop(attribute, None)
        self._learn(training_data(self, X, y, sample_weight), goes_on=False)
        return self

    @transaction
    @with_callbacks
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> FSVC:
        """Go on with the pass over the next samples of a stream, and with the outputs.

        The centers are those of one pass over the whole stream in the order given, whatever its
        chunks (`shuffle` does not apply). Radii to be searched are searched on the first chunk.
        Outputs: "one-hot" needs no training; "lms" takes one epoch over the chunk; "ridge" adds it
        to sums that are kept (8 m² bytes), in which a center counts from its own chunk on.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        classes : array-like of shape (n_classes,), optional
            All labels that will come; needed in the first call.
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
            After ``fit`` with "ridge", which keeps no sums: they begin anew.
        """
        check_fsvc_parameters(self)
        first = not hasattr(self, "_selection")
        data = stream_data(self, X, y, classes, sample_weight, first=first)
        sums = check_fsvc_solver(self).needs == "sums"
        if sums and not first and not hasattr(self, "_normal"):
            warn(
                "fit keeps no sums to add to: the outputs are trained anew from this chunk on. "
                "Call partial_fit from the first chunk on instead."
            )
        self._learn(data, goes_on=True)
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
            One a class; for two classes that of the second less that of the first.

        Warns
        -----
        UserWarning
            With the number of samples outside every radius, see `outside`.
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
            With the number of samples outside every radius, see `outside`.
        """
        scores = self._scores(X)
        with stage("back and evaluate", "labels"):
            winner = scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(axis=1)
            return chosen(self.classes_, winner)

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
            If no radius was searched.
        """
        check_is_fitted(self)
        return plot_radius_path(self, ax)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
