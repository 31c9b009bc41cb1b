"""Converted to ONNX, every estimator answers the same in onnxruntime."""

import numpy as np
import pytest
import scipy.sparse as sp
from callers import run_python
from reference import PROFILES
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import laplacian_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV, RBFLayer

pytest.importorskip("skl2onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from skl2onnx import to_onnx  # noqa: E402

import gpurbf.onnx  # noqa: E402, F401

X, Y = load_digits(return_X_y=True)
X_TRAIN, Y_TRAIN, X_TEST = X[:600] / 16, Y[:600], X[600:] / 16


def run(model, X, **how):
    """Its outputs by name."""
    graph = to_onnx(model, X[:1], **how).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: X})))


def same(model, X, outputs=("scores",), **how):
    """Labels equal, outputs to 1e-5."""
    found = run(model, X, **how)
    assert np.array_equal(found.pop("label"), model.predict(X))
    methods = {"scores": "decision_function", "probabilities": "predict_proba"}
    for name in {*outputs, *found}:
        expected = getattr(model, methods[name])(X)
        assert found[name].shape == expected.shape
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-5)


MODELS = {
    "svc": SVC(C=10),
    "svc-ovo": SVC(C=10, decision_function_shape="ovo"),
    "svc-ties": SVC(break_ties=True),
    "svc-laplacian": SVC(kernel="laplacian"),
    "svc-linear": SVC(kernel="linear"),
    "svc-poly": SVC(kernel="poly", degree=2, coef0=1.0),
    "svc-sigmoid": SVC(kernel="sigmoid", gamma=0.01),
    "rbf": RBFClassifier(100, random_state=0),
    "rbf-cv": RBFClassifierCV(100, random_state=0),
    "rbf-manhattan": RBFClassifier(100, metric="manhattan", kernel="laplacian", random_state=0),
    "fsvc": FSVC(1.5, random_state=0),
    "fsvc-triangular": FSVC(0.8, kernel="triangular", random_state=0),
    "fsvc-published": FSVC.published(12.0),
    "fsvc-sfsvc": FSVC.sfsvc(1.5),
}


@pytest.mark.filterwarnings("ignore:.*lie outside the radius:UserWarning")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("labels", ["classes", "two", "strings"])
@pytest.mark.parametrize("name", MODELS)
def test_labels_and_scores_are_those_of_the_model(name, labels, dtype):
    y = {"classes": Y_TRAIN, "two": Y_TRAIN < 5, "strings": Y_TRAIN.astype(str)}[labels]
    same(MODELS[name].fit(X_TRAIN, y), X_TEST.astype(dtype))


def test_outputs_of_exactly_0_have_the_label_of_the_model():
    model = SVC(kernel="linear").fit([[-1.0, 0], [1, 0]], [0, 1])
    same(model, np.array([[0.0, 0], [0, 5], [1, 0]]))


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
@pytest.mark.parametrize("kernel", PROFILES)
def test_a_layer_gives_its_activations(kernel, metric):
    layer = RBFLayer(30, kernel=kernel, metric=metric, random_state=0).fit(X_TRAIN)
    (H,) = run(layer, X_TEST).values()
    np.testing.assert_allclose(H, layer.transform(X_TEST), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*lie outside the radius:UserWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_outside_every_radius_are_treated_as_by_the_model(dtype):
    # float32 knows no exp(-100), and neither of the two exp(-720).
    model = FSVC(0.5, random_state=0).fit((X_TRAIN / np.pi).astype(dtype), Y_TRAIN)
    near = model.centers_[0].astype(np.float64)
    away = near + np.sqrt(np.outer([50, 100, 720], np.eye(64)[0]) / model._activation.gamma)
    same(model, away)


@pytest.mark.filterwarnings("ignore:.*lie outside the radius:UserWarning")
@pytest.mark.parametrize(
    ("dtype", "exponents"), [(np.float32, [90, 100, 110]), (np.float64, [700, 730, 760])]
)
def test_a_squared_distance_has_activations_below_the_normal_numbers(dtype, exponents):
    # exp(-100) is a number of float32, exp(-730) one of float64. The last ones are none.
    X = (X_TRAIN / np.pi).astype(dtype)
    model = FSVC(0.5, metric="sqeuclidean", random_state=0).fit(X, Y_TRAIN)
    squares = np.sqrt(np.array(exponents) * 2) * model.eval_radius_
    away = (model.centers_[0] + np.sqrt(np.outer(squares, np.eye(64)[0]))).astype(dtype)
    scores = model.decision_function(away)
    assert (abs(scores).max(axis=1) > 1e-6).tolist() == [False, False, True]
    same(model, away)


def test_activations_below_the_limits_of_float32_do_not_decide_a_label():
    layer = {"kernel": "laplacian", "solver": "lms", "precision": "float32"}
    model = RBFClassifier(20, random_state=0, **layer).fit(X_TRAIN.astype(np.float32), Y_TRAIN)
    far = (X_TEST[:50] + np.linspace(0, 1000, 50)[:, None]).astype(np.float32)
    assert not model.decision_function(far)[-1].any()
    same(model, far)


@pytest.mark.parametrize("name", ["svc", "rbf", "fsvc"])
def test_far_from_the_origin_distances_keep_their_digits(name):
    same(MODELS[name].fit(X_TRAIN + 1e4, Y_TRAIN), X_TEST + 1e4)


@pytest.mark.parametrize("shape", ["ovo", "ovr"])
def test_a_linear_kernel_far_from_the_origin_is_as_exact_as_in_the_model(shape):
    y, X = Y_TRAIN % 3, np.random.default_rng(0).normal(size=(600, 2)) + 1e5
    X[:, 0] += 2 * y
    model = SVC(kernel="linear", decision_function_shape=shape).fit(X, y)
    same(model, X)


def test_pipelines_and_sparse_models_are_converted():
    pipeline = make_pipeline(StandardScaler(), SVC(C=10)).fit(X_TRAIN, Y_TRAIN)
    same(pipeline, X_TEST)
    same(make_pipeline(RBFLayer(50, random_state=0), SVC(kernel="linear")).fit(X, Y), X)
    same(SVC().fit(sp.csr_matrix(X_TRAIN), Y_TRAIN), X_TEST)
    graph = to_onnx(pipeline, X_TRAIN[:1], options={"zipmap": False}).graph
    assert [output.name for output in graph.output] == ["label", "scores"]


@pytest.mark.parametrize("name", ["svc", "rbf", "rbf-cv", "fsvc"])
def test_columns_of_a_data_frame_are_inputs_of_their_own(name):
    frame = pytest.importorskip("pandas").DataFrame(X_TRAIN[:, 20:26], columns=list("abcdef"))
    model = MODELS[name].fit(frame, Y_TRAIN % 2)
    graph = to_onnx(model, frame[:1]).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    label, scores, *_ = session.run(None, {name: frame[[name]].to_numpy() for name in frame})
    assert np.array_equal(label, model.predict(frame)) and scores.dtype == np.float64
    np.testing.assert_allclose(scores, model.decision_function(frame), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*lie outside the radius:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_the_lowest_opset_that_the_pages_name_suffices(name):
    same(MODELS[name].fit(X_TRAIN, Y_TRAIN), X_TEST, target_opset=11)


AROUND = {
    "calibration": lambda m: CalibratedClassifierCV(m, cv=2),
    "scaled": lambda m: make_pipeline(StandardScaler(), CalibratedClassifierCV(m, ensemble=False)),
    "stacking": lambda m: StackingClassifier([("a", m), ("b", m)], cv=2),
    "voting": lambda m: VotingClassifier(
        [("a", m), ("b", m)], voting="soft", flatten_transform=False
    ),
    "bagging": lambda m: BaggingClassifier(m, 2, random_state=0),
}
RIGHT = [
    *((around, name) for around in ("calibration", "scaled") for name in ("svc", "fsvc", "rbf")),
    *((around, "rbf-cv") for around in AROUND),
]


@pytest.mark.filterwarnings("ignore:.*lie outside the radius:UserWarning")
@pytest.mark.parametrize("n_rows", [1, 500])
@pytest.mark.parametrize("labels", ["classes", "two"])
@pytest.mark.parametrize(("around", "name"), RIGHT)
def test_estimators_around_a_model_get_what_they_ask_for(around, name, labels, n_rows):
    y = Y_TRAIN if labels == "classes" else np.where(Y_TRAIN < 5, "few", "many")
    X = X_TEST[:n_rows].astype(np.float32)  # skl2onnx stores their coefficients in float32
    model = AROUND[around](MODELS[name]).fit(X_TRAIN.astype(np.float32), y)
    same(model, X, ("probabilities",), options={"zipmap": False})


@pytest.mark.parametrize("labels", ["classes", "two"])
def test_a_calibrated_pipeline_gets_the_scores_of_svc(labels):
    y = Y_TRAIN if labels == "classes" else Y_TRAIN < 5
    pipeline = make_pipeline(StandardScaler(), SVC())
    model = CalibratedClassifierCV(pipeline, ensemble=False).fit(X_TRAIN, y.astype(int))
    same(model, X_TEST.astype(np.float32), ("probabilities",), options={"zipmap": False})


@pytest.mark.filterwarnings("ignore:.*lie outside the radius:UserWarning")
@pytest.mark.parametrize("labels", ["classes", "two"])
@pytest.mark.parametrize("name", ["svc", "rbf", "rbf-cv", "fsvc"])
def test_a_grid_search_gives_what_its_best_model_does(name, labels):
    y = Y_TRAIN if labels == "classes" else Y_TRAIN < 5
    for model in (MODELS[name], make_pipeline(StandardScaler(with_std=False), MODELS[name])):
        same(GridSearchCV(model, {}, cv=2).fit(X_TRAIN, y), X_TEST)


@pytest.mark.filterwarnings("ignore:The `probability` parameter:FutureWarning")
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (OneVsRestClassifier(SVC()), Y_TRAIN),
        (BaggingClassifier(FSVC(1.5), 2), Y_TRAIN),
        (VotingClassifier([("a", SVC(probability=True))], flatten_transform=False), Y_TRAIN),
        (VotingClassifier([("a", MODELS["svc-ovo"])], flatten_transform=False), Y_TRAIN),
        (StackingClassifier([("a", SVC())], cv=2), (Y_TRAIN < 5).astype(int)),
    ],
)
def test_estimators_that_would_be_converted_wrongly_are_refused(model, y):
    with pytest.raises(ValueError, match=r"around F?SVC would be wrong in ONNX"):
        to_onnx(model.fit(X_TRAIN, y), X_TEST[:1], options={"zipmap": False})


@pytest.mark.parametrize(
    ("fitted", "later"),
    [("euclidean", "sqeuclidean"), ("sqeuclidean", "euclidean"), ("sqeuclidean", "manhattan")],
)
def test_parameters_that_change_after_the_fit_do_not_change_the_graph(fitted, later):
    model = FSVC(1.5, metric=fitted, random_state=0).fit(X_TRAIN, Y_TRAIN)
    same(model.set_params(metric=later, kernel="triangular"), X_TEST)


def test_models_that_onnx_cannot_express_are_refused():
    for model, y, message in (
        (SVC(kernel=laplacian_kernel), Y_TRAIN, "function cannot be converted"),
        (RBFLayer(5, kernel=np.sqrt), Y_TRAIN, "function cannot be converted"),
        (SVC(), Y_TRAIN.astype(float), r"integers or strings.*float64"),
        (SVC(), Y_TRAIN.astype(np.uint64) + 2**63, r"64-bit.*uint64, up to 9223372036854775817"),
    ):
        with pytest.raises(ValueError, match=message):
            run(model.fit(X_TRAIN, y), X_TEST)


@pytest.mark.parametrize("kind", [SVC, RBFClassifier, FSVC, RBFLayer])
def test_a_model_without_a_fit_is_refused_as_by_its_own_methods(kind):
    with pytest.raises(NotFittedError, match=f"This {kind.__name__} instance is not fitted yet"):
        to_onnx(kind(), X_TEST[:1])


def test_without_skl2onnx_the_error_says_what_to_install():
    code = "import sys; sys.modules['skl2onnx'] = None; import gpurbf.onnx"
    done = run_python(code, check=False)
    assert "pip install skl2onnx onnxruntime" in done.stderr.splitlines()[-1]
