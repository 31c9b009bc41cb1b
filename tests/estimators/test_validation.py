"""Few plain samples skip scikit-learn's validation, many are checked by us; nobody can tell."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from callers import Callback
from sklearn.base import clone
from sklearn.datasets import make_blobs

from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer
from gpurbf.centers import CENTERS
from gpurbf.estimators import _validation
from gpurbf.runtime import threads

RNG = np.random.default_rng(0)
X, y = RNG.normal(size=(40, 3)), np.arange(40) % 3
pd = pytest.importorskip("pandas")
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
SAMPLES = {
    "float64": X,
    "float32": X.astype(np.float32),
    "uint8": (20 * np.abs(X)).astype(np.uint8),
    "int64": (20 * X).astype(np.int64),
    "bool": X > 0,
    "Fortran order": np.asfortranarray(X),
    "every other row": np.repeat(X, 2, axis=0)[::2],
    "read-only": np.broadcast_to(X[0], X.shape),
    "masked": np.ma.masked_array(X, X > 1),
    "matrix": np.asmatrix(X),
    "object": X.astype(object),
    "complex": X + 1j,
    "list": X.tolist(),
    "frame": FRAME,
    "sparse": sp.csr_array(X),
    "NaN": np.where(X == X.max(), np.nan, X),
    "infinity": np.where(X == X.max(), np.inf, X),
    "two features": X[:, :2],
    "no features": X[:, :0],
    "one dimension": X[:, 0],
    "three dimensions": X[:, :, None],
    "no sample": X[:0],
}
LABELS = {
    "int": y,
    "int8": y.astype(np.int8),
    "bool": y > 0,
    "float": y.astype(float),
    "measured": X[:, 0],
    "str": y.astype(str),
    "object": y.astype(object),
    "column": y[:, None],
    "two columns": np.c_[y, y],
    "short": y[:-1],
    "list": y.tolist(),
    "none": None,
    "each once": np.arange(40),
    "one class": np.zeros(40, int),
}


def outcome(call):
    """What comes of a call: the result or the error, and what was said."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
    return result, sorted({str(each.message) for each in said})


def by_each_way(monkeypatch, call):
    """The outcomes by the way for few numbers, the way for many, and scikit-learn's alone."""
    few = outcome(call)
    with monkeypatch.context() as patch:
        patch.setattr(_validation, "_MANY", 7)
        many = outcome(call)
        patch.setattr(_validation, "_is_plain", lambda *args: False)
        patch.setattr(_validation, "_are_plain_labels", lambda y: False)
        return few, many, outcome(call)


@pytest.mark.parametrize("model", [SVC(backend="numpy"), RBFClassifier(5, random_state=0)], ids=str)
@pytest.mark.parametrize("fitted", ["array", "frame"])
@pytest.mark.parametrize("samples", SAMPLES)
def test_predictions_are_those_of_the_full_validation(model, fitted, samples, monkeypatch):
    model = clone(model).fit(FRAME if fitted == "frame" else X, y)
    found = by_each_way(monkeypatch, lambda: model.decision_function(SAMPLES[samples]).tolist())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("labels", LABELS)
def test_fits_are_those_of_the_full_validation(samples, labels, monkeypatch):
    def fit():
        model = SVC(backend="numpy").fit(SAMPLES[samples], LABELS[labels])
        names = getattr(model, "feature_names_in_", np.empty(0)).tolist()
        return model.n_features_in_, names, model.classes_.tolist(), model.support_.tolist()

    found = by_each_way(monkeypatch, fit)
    assert found[0] == found[1] == found[2]


def test_names_of_an_earlier_fit_are_forgotten():
    model = SVC().fit(FRAME, y).fit(X, y)
    assert not hasattr(model, "feature_names_in_")


def test_small_plain_arrays_skip_the_full_validation(monkeypatch):
    monkeypatch.setattr(_validation, "validate_data", None)
    SVC(backend="numpy").fit(X, y).predict(X)


def test_all_threads_check_many_numbers_and_a_limit_of_one_thread_holds(cores, monkeypatch):
    many, seen = np.ones((10, _validation._MANY // 4)), []
    with monkeypatch.context() as patch:
        patch.setattr(_validation, "parallel_rows", lambda *_: seen.append(threads.thread_limit()))
        for n_jobs in (None, 3, 1):
            _validation.check_X(SVC(n_jobs=n_jobs), many, reset=True)
    assert seen == [cores, 3, 1]
    many[:] = np.finfo(float).max  # finite, though their sum is not
    assert _validation.check_X(SVC(), many, reset=True) is many
    many[-1, -1] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        _validation.check_X(SVC(), many, reset=True)


@pytest.mark.parametrize("model", [FSVC(1.0), RBFClassifier(5, random_state=0)], ids=str)
def test_a_stream_names_all_labels_first(model):
    with pytest.raises(ValueError, match="needs classes="):
        clone(model).partial_fit(X, y)
    for none in ([], {0, 1, 2}):
        with pytest.raises(ValueError, match="must be an array of the labels"):
            clone(model).partial_fit(X, y, classes=none)
    with pytest.raises(ValueError, match="cannot balance"):
        clone(model).set_params(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])
    model = clone(model).partial_fit(X, y, classes=[0, 1, 2])
    outputs = model.decision_function(X)
    model.partial_fit(X + 9, y[::-1], sample_weight=np.zeros(len(y)))  # nothing to learn from
    np.testing.assert_allclose(model.decision_function(X), outputs, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"Labels \[3\] are not among classes"):
        model.partial_fit(X, y + 1)
    with pytest.raises(ValueError, match="is not what the first call gave"):
        model.partial_fit(X, y, classes=[0, 1, 2, 3])


def test_many_classes_of_a_stream_are_no_regression():
    A, b = np.random.default_rng(0).normal(size=(90, 3)), np.arange(90) % 30
    for names in (np.arange(30), np.arange(30).astype(str).tolist()):  # a warning is an error
        RBFClassifier(centers=A[:5]).partial_fit(A, np.asarray(names)[b], classes=names)


@pytest.mark.filterwarnings("ignore:gamma=.* is so large:UserWarning")
def test_no_activation_is_nan_whatever_gamma():
    codes = np.arange(40, dtype=np.uint8).reshape(10, 4)
    for A in (codes, codes.astype(np.float32) / 3):
        with pytest.raises(ValueError, match=r"gamma=1e\+39"):
            RBFLayer(5, gamma=1e39, random_state=0).fit(A).transform(A)
        assert np.isfinite(RBFLayer(5, gamma=1e38, random_state=0).fit_transform(A)).all()


@pytest.mark.parametrize("kernel", [lambda d: None, lambda d: d.sum()])
@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_a_function_for_a_kernel_gives_as_many_numbers(backend, kernel):
    with pytest.raises(ValueError, match="one of its shape"):
        RBFLayer(3, backend=backend, kernel=kernel).fit_transform(X)


def test_a_layer_takes_any_targets():
    """It stands before regressors of several targets, too, which have no classes."""
    plain = RBFLayer(5, random_state=0).fit(X).centers_
    of_labels = sp.csr_matrix(np.eye(3)[y])
    for targets in (np.c_[X[:, 0], y], np.c_[y, y].tolist(), FRAME, of_labels):
        np.testing.assert_array_equal(RBFLayer(5, random_state=0).fit(X, targets).centers_, plain)
    by_class = RBFLayer(5, random_state=0).fit(X, y).centers_
    for column in (y[:, None], pd.DataFrame({"y": y})):
        np.testing.assert_array_equal(RBFLayer(5, random_state=0).fit(X, column).centers_, by_class)
    for wrong in (y[:-1], 3, np.c_[y, y].T, of_labels[1:]):
        with pytest.raises(ValueError, match="y must have shape"):
            RBFLayer(5).fit(X, wrong)
    with pytest.raises(TypeError, match="use labels of one type"):
        RBFLayer(5).fit(X, np.where(y > 1, None, "a"))


CLASSIFIERS = [RBFClassifier(9), *(FSVC(1.5, solver=name) for name in ("ridge", "lms", "one-hot"))]


@pytest.mark.filterwarnings("ignore:.*outside the radius of every center:UserWarning")
@pytest.mark.parametrize(
    "model",
    [*CLASSIFIERS, SVC(C=1e-300), FSVC.sfsvc(1.0), RBFClassifier(5, kernel=lambda d: np.exp(-d))],
)
def test_an_underflow_is_no_error_whatever_numpy_raises(model):
    far, model = np.where(np.arange(40)[:, None] == 7, 1e3, X), clone(model)
    samples = np.concatenate([X, X - 50])
    expected = model.set_params(random_state=0).fit(far, y).decision_function(samples)
    with np.errstate(all="raise"):
        found = model.fit(far, y).decision_function(samples)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("model", CLASSIFIERS, ids=str)
def test_class_weights_pull_towards_their_class_and_may_balance(model):
    A, b = make_blobs([300, 100], 2, cluster_std=4.0, random_state=1)

    def fitted(weights):
        return clone(model).set_params(class_weight=weights, random_state=0).fit(A, b)

    ones = [(fitted(weights).predict(A) == 1).sum() for weights in ({1: 0.05}, None, {1: 20})]
    assert ones[0] < ones[1] < ones[2]
    for weights, same in (({1: 20}, {0: 1.0, 1: 20.0}), ("balanced", {0: 400 / 600, 1: 400 / 200})):
        np.testing.assert_allclose(fitted(weights).coef_, fitted(same).coef_, rtol=1e-12)


@pytest.mark.parametrize("model", [FSVC(1.0, random_state=0), RBFClassifier(5, random_state=0)])
def test_weights_so_large_or_small_that_more_than_their_ratios_would_count_are_refused(model):
    for size in (1e-50, 1e40):
        with pytest.raises(ValueError, match=r"from 1e-16 to 1e\+15"):
            model.fit(X, y, np.full(len(X), size))
    # AdaBoost's weights go down to 2 ** -52.
    outputs = [model.fit(X, y, np.full(len(X), 2.0**k)).decision_function(X) for k in (0, -53, 49)]
    assert np.ptp(outputs, axis=0).max() < 1e-9


def test_numbers_of_any_type_are_numbers():
    model, plain = SVC(C=Fraction(1, 2), max_iter=10**30).fit(X, y), SVC(C=0.5).fit(X, y)
    np.testing.assert_array_equal(model.dual_coef_, plain.dual_coef_)


@pytest.mark.parametrize("model", [SVC, RBFClassifier])
def test_a_gamma_so_large_that_rounding_decides_is_told(model):
    """Distances of codes are exact, and another gamma is only so far from the data."""
    A, b = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 2
    with pytest.warns(UserWarning, match=r"gamma=1e\+20 is so large"):
        model(gamma=1e20).fit(A, b)
    with pytest.warns(UserWarning, match="gamma=0.2 is so large"):
        model(gamma="auto").fit(1e9 * A, b)
    model(gamma=1e6).fit(A, b)  # a warning would be an error
    assert model(gamma=1e20).fit(np.rint(A * 9), b).score(np.rint(A * 9), b) == 1
    with pytest.raises(TypeError, match="gamma must be a number"):
        model(gamma=np.array([1.0, 2.0])).fit(A, b)


# What is found in the first batch, or given.
FOUND = [RBFClassifier(5), FSVC(), FSVC(1.0)]
GIVEN = [RBFClassifier(centers=X[:5], gamma=0.1), FSVC(1.0, eval_radius=None, solver="one-hot")]


@pytest.mark.parametrize("model", FOUND + GIVEN, ids=str)
def test_a_first_batch_that_lacks_classes_is_told_where_it_decides_something(model):
    some = np.flatnonzero(y < 2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        clone(model).partial_fit(X[some], y[some], classes=[0, 1, 2])
        clone(model).partial_fit(X, y, classes=[0, 1, 2])
    assert ["samples of 2 of 3 classes" in str(one.message) for one in said] == [True] * (
        model in FOUND
    )


@pytest.mark.parametrize("kind", [RBFClassifier, RBFLayer, SVC])
def test_a_kernel_that_gives_nan_is_named(kind):
    model = kind(kernel=(lambda A, B: A @ B.T * np.nan) if kind is SVC else (lambda d: d * np.nan))
    with pytest.raises(ValueError, match=r"kernel=<function .*> gives NaN or "):
        model.fit(X, y)
        model.transform(X)


@pytest.mark.parametrize("model", [SVC(), RBFClassifier(5), FSVC(1.0, solver="lms")], ids=str)
def test_class_weights_are_found_by_labels_that_are_digits_in_text(model):
    weights, model = {0: 1, 1: 4, 2: 0.5}, clone(model).set_params(random_state=0)
    expected = clone(model).set_params(class_weight=weights).fit(X, y).decision_function(X)
    weights = {str(name): weight for name, weight in weights.items()}
    found = clone(model).set_params(class_weight=weights).fit(X, y.astype(str))
    np.testing.assert_array_equal(found.decision_function(X), expected)
    for part in ({"0": 3.0}, {}):
        clone(model).set_params(class_weight=part).fit(X, y.astype(str))
    with pytest.raises(ValueError, match=r"classes, \['0', '1', '2'\], are not in class_weight"):
        clone(model).set_params(class_weight={"3": 1.0}).fit(X, y.astype(str))


@pytest.mark.parametrize("model", [SVC(), RBFClassifier(5), FSVC(1.0, solver="lms")], ids=str)
def test_class_weights_may_name_a_class_whose_samples_have_weight_0(model):
    weights = np.where(y == 1, 0.0, 1.0)
    model = clone(model).set_params(random_state=0, class_weight={0: 1.0, 2: 3.0})
    expected = clone(model).fit(X, y, weights).decision_function(X)
    for named in ({1: 5.0, 2: 3.0}, {0: 1.0, 1: 5.0, 2: 3.0}):
        found = clone(model).set_params(class_weight=named).fit(X, y, weights)
        np.testing.assert_array_equal(found.decision_function(X), expected)
    model.set_params(class_weight={0: 1.0, 3: 3.0})  # 3 is a misspelled 2, which is given
    with pytest.raises(ValueError, match=r"classes, \[1, 2\], are not in class_weight"):
        model.fit(X, y, weights)
    if hasattr(model, "partial_fit"):
        with pytest.raises(ValueError, match="are not in class_weight"):
            model.partial_fit(X, y, range(3), weights)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("model", [SVC(), RBFClassifier(5), RBFLayer(5), FSVC(1.0)], ids=str)
def test_bytes_that_are_given_twice_add_up_beyond_255(model, form):
    A = np.random.default_rng(0).integers(0, 200, (40, 4))
    rows, columns = np.divmod(np.tile(np.arange(160), 2), 4)
    values = np.tile(A.ravel(), 2).astype(np.uint8)
    twice = sp.coo_array((values, (rows, columns)), A.shape)
    if form != "coo":  # its own conversion would sum them
        major, minor = (rows, columns) if form == "csr" else (columns, rows)
        order, ends = np.argsort(major, kind="stable"), np.bincount(major + 1).cumsum()
        twice = getattr(sp, f"{form}_array")((values[order], minor[order], ends), A.shape)
    given = [
        clone(model).set_params(random_state=0).fit(B, y) for B in (twice, sp.csr_array(2.0 * A))
    ]
    of = "transform" if isinstance(model, RBFLayer) else "decision_function"
    found, expected = (getattr(each, of)(twice) for each in given)
    np.testing.assert_array_equal(found, expected)
    assert twice.nnz == 320 and twice.dtype == np.uint8


def test_bytes_that_are_not_sorted_stay_bytes():
    A = np.random.default_rng(0).integers(0, 200, (40, 4)).astype(np.uint8)
    mixed = sp.csr_array((A[:, ::-1].ravel(), np.tile([3, 2, 1, 0], 40), np.arange(0, 161, 4)))
    layers = [RBFLayer(5, random_state=0).fit(B, y) for B in (A, mixed)]
    assert layers[1].centers_.dtype == np.uint8
    np.testing.assert_array_equal(layers[1].transform(mixed), layers[0].transform(A))


class Failing(Callback):
    """A callback with an error of its own."""

    def on_fit_task_end(self, *_):
        raise FloatingPointError("mine")


@pytest.mark.parametrize("model", [SVC(), RBFClassifier(5), FSVC(1.5)])
def test_an_error_of_the_callers_own_code_stays_as_it_is(model):
    pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")
    with pytest.raises(FloatingPointError, match=r"^mine$"):
        clone(model).set_callbacks(Failing()).fit(X, y)


def test_a_list_is_no_backend():
    with pytest.raises(ValueError, match=r"Unknown backend \['numpy'\]"):
        RBFLayer(5, backend=["numpy"]).fit(X)


def test_centers_do_not_change_with_the_samples_that_a_rule_returns(monkeypatch):
    monkeypatch.setitem(CENTERS, "first", lambda X, y, n, **_: X[:n])
    samples = np.array(X)
    layer = RBFLayer(5, centers="first").fit(samples)
    samples[:] = 0
    np.testing.assert_array_equal(layer.centers_, X[:5])
