"""Numbers that make no sense never come out: an answer, or an error that names column and cure."""

import re
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from callers import outputs
from reference import PROFILES
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_iris

from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV, RBFLayer

X, y = load_iris(return_X_y=True)
NORMAL = np.random.default_rng(0).standard_normal((120, 6))
CLASSES = (NORMAL[:, 0] > 0).astype(int)
MODELS = [
    RBFClassifier(30, random_state=0),
    RBFClassifier(30, gamma=0.5, solver="lms", random_state=0),
    RBFClassifier(30, centers="fsvc", random_state=0),
    RBFLayer(30, random_state=0),
    FSVC(random_state=0),
    FSVC(1e155, random_state=0),
    FSVC("ratio", solver="one-hot", random_state=0),
]
REFUSED = [(model, scale) for model in MODELS for scale in (1e155, 1e200, 1e-200)]
# SVC answers where scikit-learn's does.
REFUSED += [(SVC(), 1e155), (SVC(), 1e200)]
REFUSED += [
    (RBFLayer(30, gamma="median", metric=metric), scale)
    for metric in ("euclidean", "manhattan")
    for scale in (1e200, 3e307)
]
REFUSED += [
    (model.set_params(precision="float32", random_state=0), 1e-24)
    for model in (RBFLayer(30, kernel="laplacian"), FSVC(), RBFClassifierCV(30, kernel="laplacian"))
]
CLASSIFIERS = [RBFClassifier(30, alpha=1e-4, random_state=0), FSVC(random_state=0), SVC()]
OUTSIDE = "ignore:.*outside the radius of every center:UserWarning"


@pytest.mark.parametrize(("model", "scale"), REFUSED, ids=str)
def test_data_whose_squares_overflow_or_vanish_are_an_error_that_names_column_and_cure(
    model, scale
):
    data = scale * NORMAL
    column, largest = np.abs(data).max(axis=0).argmax(), re.escape(f"{np.abs(data).max():.3g}")
    with pytest.raises(
        ValueError, match=rf"column {column} of X reaches {largest}.*[Ss]cale the data"
    ):
        clone(model).fit(data, CLASSES)


@pytest.mark.parametrize("model", [RBFLayer(30), RBFClassifier(30), FSVC()], ids=str)
def test_so_is_a_precision_that_is_set_after_the_fit(model):
    fitted = clone(model).fit(1e-24 * NORMAL, CLASSES).set_params(precision="float32")
    with pytest.raises(ValueError, match=r"float32 cannot be computed: column . of X reaches"):
        getattr(fitted, "transform", getattr(fitted, "predict", None))(1e-24 * NORMAL)


@pytest.mark.parametrize(
    "model",
    [*CLASSIFIERS, RBFClassifier(30, kernel=lambda d: np.exp(-d))],
    ids=[*map(str, CLASSIFIERS), "function"],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_where_nobody_checks_for_nan_its_column_is_named_all_the_same(model, value):
    data = NORMAL.copy()
    data[7, 4] = value
    with config_context(assume_finite=True), np.errstate(invalid="ignore"):
        with pytest.raises(ValueError, match="column 4 of X has NaN or infinity"):
            clone(model).fit(data, CLASSES)
        with pytest.raises(ValueError, match="column 4 of X has NaN or infinity"):
            clone(model).fit(NORMAL, CLASSES).predict(data)


def test_a_gamma_that_vanishes_is_an_error_too():
    """Squares overflow, and squared distances do not."""
    with pytest.raises(ValueError, match="Scale the data"):
        SVC().fit(1e153 * X, y)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
@pytest.mark.parametrize(
    "model",
    [
        RBFClassifier(30, alpha=1e308, solver="ridge"),
        RBFClassifier(30, alpha=1e308, solver="cg"),
        RBFClassifierCV(30, alphas=[1e-3, 1e308]),
    ],
    ids=["ridge", "cg", "cv"],
)
def test_a_penalty_that_overflows_is_named(model):
    with pytest.raises(ValueError, match=r"Or alpha=1e\+308 is too large"):
        clone(model).set_params(random_state=0).fit(X, y)


def test_one_sample_whose_kernel_value_overflows_is_an_error_that_names_its_column():
    """That of it and itself, which no step would have used but as a curvature."""
    data = NORMAL.copy()
    data[5, 2] = 1e60
    with pytest.raises(ValueError, match=r"not finite.*column 2 of X reaches 1e\+60"):
        SVC(kernel="poly", gamma=1.0).fit(data, CLASSES)


def test_the_column_is_called_by_its_name_and_sparse_data_have_columns_too():
    pandas = pytest.importorskip("pandas")
    data = NORMAL.copy()
    data[:, 3] *= 1e160
    frame = pandas.DataFrame(data, columns=list("abcdef"))
    for model in (RBFClassifier(30), FSVC(1.0)):
        with pytest.raises(ValueError, match=r"column 3 \('d'\) of X reaches"):
            model.fit(frame, CLASSES)
        with pytest.raises(ValueError, match="column 3 of X reaches"):
            model.fit(sp.csr_matrix(data), CLASSES)


@pytest.mark.parametrize("model", [RBFLayer, RBFClassifier])
def test_so_are_centers_that_are_given(model):
    with pytest.raises(ValueError, match="Or the centers given have such numbers"):
        model(centers=1e200 * NORMAL[:30]).fit(NORMAL, CLASSES)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("n_centers", [20, 300])  # with and without a grid for exact sums
@pytest.mark.parametrize("model", ["ridge", "cg", "cv"])
def test_activations_beyond_float32_are_learned_in_float64(model, n_centers):
    data = np.random.default_rng(0).standard_normal((400, 3))
    labels = (data[:, 0] > 0).astype(int)
    outputs = []
    for scale in (1.0, 2.0**80, 2.0**133):  # of the scale, activations are the square
        A = scale * data
        given = {"centers": A[:n_centers], "kernel": lambda d: d, "gamma": 1.0}
        if model == "cv":
            fitted = RBFClassifierCV(alphas=[0.01], **given)
        else:
            fitted = RBFClassifier(alpha=0.01, solver=model, precision="float64", **given)
        outputs.append(fitted.fit(A, labels).decision_function(A))
    np.testing.assert_allclose(outputs[1:], [outputs[0]] * 2, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "power"),
    [*((np.float32, p) for p in (63, -83)), *((np.float64, p) for p in (63, -83, 300, -300))],
)
@pytest.mark.parametrize("model", CLASSIFIERS, ids=str)
def test_data_are_learned_whatever_their_unit(model, power, dtype, backend):
    if backend in ("cupy", "numba-cuda"):
        pytest.skip("float32 of a device has other limits")
    model = clone(model).set_params(backend=backend)
    data = X.astype(dtype)
    data += dtype(0.01) * np.sqrt(data)  # off every quantization
    data *= dtype(2) ** power
    assert clone(model).fit(data, y).score(data, y) > 0.9


def finite_or_refused(call, column):
    """The call gives finite numbers or the error that names the column."""
    try:
        found = call()
    except ValueError as error:
        assert f"column {column} of X reaches" in str(error)
    else:
        assert np.isfinite(found).all()


@pytest.mark.filterwarnings(OUTSIDE, "ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", PROFILES)
def test_a_sample_from_afar_gets_finite_outputs_or_the_error(kernel, dtype, backend):
    models = [RBFClassifier(30, kernel=kernel, random_state=0), RBFLayer(30, kernel=kernel)]
    if kernel in ("gaussian", "triangular"):
        models.append(FSVC(kernel=kernel, random_state=0))
    for model in models:
        model.set_params(backend=backend).fit(NORMAL.astype(dtype), CLASSES)
        for size in (1e15, 1e25, 1e37) if dtype == np.float32 else (1e20, 1e100, 1e160, 1e300):
            batch = NORMAL[:20].astype(dtype)
            batch[7, 2] = size
            finite_or_refused(partial(outputs, model, batch), 2)


def test_two_samples_of_two_classes_are_told_apart():
    assert RBFClassifier(2, random_state=0).fit(X[[0, 60]], [0, 1]).score(X[[0, 60]], [0, 1]) == 1


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize("method", ["decision_function", "predict"])
def test_samples_that_are_all_alike_and_huge_get_no_number_from_svc(backend, method):
    huge, model = np.full((40, 3), 1e300), SVC(backend=backend)
    finite_or_refused(lambda: getattr(model.fit(huge, CLASSES[:40]), method)(huge), 0)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_predict_gives_no_label_where_decision_function_gives_no_number():
    model = RBFClassifier(30, kernel="multiquadric", gamma=0.5, random_state=0).fit(X, y)
    far = np.full((3, 4), 1e200)
    for method in (model.decision_function, model.predict):
        with pytest.raises(ValueError, match="column 0 of X reaches 1e\\+200"):
            method(far)
