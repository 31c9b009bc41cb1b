"""SVC against scikit-learn's: the same answer, attributes and rules; and what is ours alone."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import datasets, svm
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_blobs, make_classification
from sklearn.metrics.pairwise import pairwise_kernels

from gpurbf import SVC, config_context
from gpurbf.svm import binary, kernel_matrix, pairs
from gpurbf.svm.ovo import pair_weights
from tests import reference

KERNELS = ("rbf", "laplacian", "linear", "poly", "sigmoid")


X, y = (part[:400] for part in load_digits(return_X_y=True))


def weighted(X, y, seed=0):
    """With weights between 0.2 and 5."""
    return X, y, np.exp(np.random.default_rng(seed).uniform(-1.6, 1.6, len(y)))


def imbalanced(seed):
    return make_classification(
        400, 8, n_informative=5, n_classes=3, weights=[0.8, 0.15, 0.05], random_state=seed
    )


# name: (parameters, (X, y) or (X, y, weights))
PROBLEMS = {
    "digits": ({"gamma": 0.001, "C": 10}, load_digits(return_X_y=True)),
    "digits, linear": ({"kernel": "linear"}, (X, y)),
    "digits, poly": ({"kernel": "poly", "coef0": 1.0, "degree": 2}, (X, y)),
    "iris": ({}, load_iris(return_X_y=True)),
    "iris, sigmoid": ({"kernel": "sigmoid", "gamma": 0.01}, load_iris(return_X_y=True)),
    "wine": ({"C": 100}, datasets.load_wine(return_X_y=True)),
    "breast cancer": ({"C": 100}, datasets.load_breast_cancer(return_X_y=True)),
    "blobs": ({}, make_blobs(300, centers=5, cluster_std=3, random_state=0)),
    "circles": ({"gamma": 2}, datasets.make_circles(300, noise=0.2, factor=0.4, random_state=0)),
    "moons": ({"C": 1000}, datasets.make_moons(300, noise=0.3, random_state=0)),
    "weighted": ({}, weighted(*make_classification(300, 6, n_classes=2, random_state=1))),
    "imbalanced": ({"class_weight": "balanced"}, imbalanced(2)),
    "both weights": ({"class_weight": {0: 0.3, 1: 2, 2: 5}}, weighted(*imbalanced(3))),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_same_answer_as_scikit_learn(name):
    parameters, (X, y, *weights) = PROBLEMS[name]
    # Weights change our gamma="scale", and so the problem; see docs/svc.md.
    if weights:
        parameters = {"gamma": 1 / (X.shape[1] * X.var())} | parameters
    ours, theirs = (model(**parameters).fit(X, y, *weights) for model in (SVC, svm.SVC))
    assert ours.fit_status_ == 0
    assert ours.class_weight_ == pytest.approx(theirs.class_weight_)
    assert abs(len(ours.support_) - len(theirs.support_)) <= 0.01 * len(theirs.support_) + 1
    theirs_objective = objectives(theirs, X, y)
    assert ours.objective_ == pytest.approx(theirs_objective, rel=1e-4)
    assert objectives(ours, X, y) == pytest.approx(ours.objective_, rel=1e-5)
    assert (ours.predict(X) != theirs.predict(X)).mean() <= 0.001
    ours.decision_function_shape = theirs.decision_function_shape = "ovo"
    scale = np.abs(theirs.decision_function(X)).max()
    assert ours.decision_function(X) == pytest.approx(theirs.decision_function(X), abs=2e-3 * scale)


def objectives(model, X, y):
    """Dual objective of each pair, from the fitted attributes."""
    numbers = {"gamma": model._gamma, "coef0": model.coef0, "degree": model.degree}
    K = pairwise_kernels(X[model.support_], metric=model.kernel, filter_params=True, **numbers)
    W = pair_weights(model.dual_coef_, model.n_support_).dense()
    return np.sum(W * (K @ W) / 2 - np.abs(W), axis=0)


@pytest.mark.parametrize("labels", [np.array(["ox", "ant", "bee"]), np.array([7, -1, 3])])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_fitted_attributes_are_scikit_learns(labels, n_classes):
    X, y = load_iris(return_X_y=True)
    X, y = X[y < n_classes], labels[y[y < n_classes]]
    ours, theirs = (model(kernel="linear", tol=1e-8).fit(X, y) for model in (SVC, svm.SVC))
    same = "classes_ class_weight_ support_ n_support_ support_vectors_ shape_fit_ fit_status_"
    for name in same.split():
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
    for name in ("support_", "n_support_", "n_iter_", "dual_coef_", "intercept_", "coef_"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a.shape, a.dtype, a.flags.c_contiguous) == (b.shape, b.dtype, True), name
        if b.dtype == float:
            np.testing.assert_allclose(a, b, rtol=0, atol=5e-4, err_msg=name)
    with pytest.raises(AttributeError, match="linear"):
        _ = SVC().fit(X, y).coef_


def test_small_problems_take_libsvms_own_path():
    X, y = datasets.load_wine(return_X_y=True)
    assert np.array_equal(SVC().fit(X, y).n_iter_, svm.SVC().fit(X, y).n_iter_)


@pytest.mark.parametrize("options", [{"decision_function_shape": "ovo"}, {}, {"break_ties": True}])
def test_votes_and_ties_are_scikit_learns(options):
    X, y = make_blobs(60, centers=4, cluster_std=4, random_state=0)
    # So narrow that far from the samples all outputs are the intercepts: ties in plenty.
    ours, theirs = (model(gamma=50.0, tol=1e-8, **options).fit(X, y) for model in (SVC, svm.SVC))
    grid = np.random.default_rng(0).uniform(-15, 15, (2000, 2))
    assert ours.decision_function(grid) == pytest.approx(theirs.decision_function(grid), abs=1e-6)
    assert np.array_equal(ours.predict(grid), theirs.predict(grid))


def noted(monkeypatch, method):
    """A list that gets the arguments and the result of every call of this method of KernelRows."""
    calls, original = [], getattr(kernel_matrix.KernelRows, method)

    def call(*args):
        result = original(*args)
        calls.append((args, result))
        return result

    monkeypatch.setattr(kernel_matrix.KernelRows, method, call)
    return calls


def codes(X):
    return np.clip(np.round(30 * X + 128), 0, 255).astype(np.uint8)


def wide_sparse(X):
    """The same samples, with 5000 inputs more that are 0."""
    return sp.csr_array(sp.hstack([sp.csr_array(X), sp.csr_array((len(X), 5000))]))


@pytest.mark.parametrize("form", [np.asarray, codes, wide_sparse])
def test_many_small_classes_are_scikit_learns_on_any_threads_in_any_blocks(form, monkeypatch):
    """Pairs share matrices of groups of classes; outputs are made and given up block by block."""
    made = noted(monkeypatch, "values")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(25), rng.integers(20, 90, 25))
    X = form(rng.normal(size=(25, 5))[y] + 0.7 * rng.normal(size=(len(y), 5)))
    options = {"tol": 1e-6, "cache_size": 2}
    ours, theirs = SVC(**options).fit(X, y), svm.SVC(**options).fit(X, y)
    alone = SVC(**options, n_jobs=1).fit(X, y)
    assert len(made) > 2
    for (whole, samples, _, K), _ in made:
        assert K.shape == (len(samples), len(samples))
        np.testing.assert_allclose(K, whole.between(samples), atol=1e-6)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    scores = ours.decision_function(X)
    np.testing.assert_array_equal(alone.decision_function(X), scores)
    np.testing.assert_allclose(scores, theirs.decision_function(X), atol=1e-4)
    with config_context(memory=1):
        np.testing.assert_array_equal(ours.decision_function(X), scores)
        np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("precision", ["auto", "float32", "float64"])
def test_outputs_of_many_classes_are_scikit_learns(backend, precision):
    """Classes of 3 to 61 support vectors, several in a tile and some in two."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(20), np.arange(3, 63, 3))
    X = rng.normal(size=(20, 6))[y] + rng.normal(size=(len(y), 6))
    options = {"tol": 1e-8, "decision_function_shape": "ovo"}
    model = SVC(backend=backend, precision=precision, **options).fit(X, y)
    expected = svm.SVC(**options).fit(X, y)
    assert len(model.support_) > 512
    atol = 1e-5 if precision == "float32" else 1e-6
    np.testing.assert_allclose(model.decision_function(X), expected.decision_function(X), atol=atol)


def test_gamma_is_that_of_the_ratios_of_weights():
    X, y = imbalanced(0)
    weights = np.random.default_rng(0).uniform(0.1, 1, len(y))
    models = [SVC(C=1 / size).fit(X, y, weights * size) for size in (1.0, 2.0**1020)]
    assert models[0]._gamma == pytest.approx(models[1]._gamma)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_a_weight_of_two_is_the_sample_twice_in_any_order(kernel, class_weight):
    X, y = make_classification(80, 4, n_informative=3, n_redundant=0, n_classes=3, random_state=0)
    counts = np.random.default_rng(0).integers(0, 4, len(y))
    model = SVC(kernel=kernel, class_weight=class_weight)
    once = clone(model).fit(X, y, counts)
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(80), counts))
    often = clone(model).fit(X[rows], y[rows])
    assert once.decision_function(X) == pytest.approx(often.decision_function(X), rel=1e-9)


@pytest.mark.parametrize("seed", [5, 13, 30, 51])
def test_where_all_coefficients_are_at_bounds_the_intercept_is_the_middle(seed):
    """Equal samples are one with the sum of their bounds, which sums of steps miss by rounding."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((20, 2))[rng.integers(0, 20, 60)], rng.integers(0, 2, 60)
    w, options = np.full(60, 1 / 60), {"C": 20.0, "gamma": 0.01, "tol": 1e-4}
    found, expected = (model(**options).fit(X, y, w) for model in (SVC, svm.SVC))
    np.testing.assert_allclose(found.intercept_, expected.intercept_, atol=1e-3)


@pytest.mark.parametrize("form", [np.uint8, np.float32, sp.csr_array, sp.csr_matrix, "/16"])
def test_form_of_the_data_does_not_change_the_model(form):
    same = X / 16 if form == "/16" else form(X)
    gamma = 0.001 * (256 if form == "/16" else 1)
    expected, model = SVC(gamma=0.001).fit(X, y), SVC(gamma=gamma).fit(same, y)
    assert np.array_equal(model.support_, expected.support_)
    assert model.decision_function(same) == pytest.approx(expected.decision_function(X), abs=1e-9)
    assert sp.isspmatrix(model.dual_coef_) == sp.isspmatrix(model.support_vectors_)
    assert sp.isspmatrix(model.dual_coef_) == sp.issparse(same)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_agree_with_the_same_kernel_as_a_function(kernel):
    X, y = make_classification(120, 5, n_classes=2, random_state=0)
    options = {"gamma": 0.1, "coef0": 0.5, "degree": 2}

    def function(A, B):
        return pairwise_kernels(A, B, metric=kernel, filter_params=True, **options)

    named = SVC(kernel=kernel, tol=1e-6, **options).fit(X, y)
    called = SVC(kernel=function, tol=1e-6).fit(X, y)
    given = SVC(kernel="precomputed", tol=1e-6).fit(function(X, X), y)
    expected = named.decision_function(X)
    assert called.decision_function(X) == pytest.approx(expected, abs=1e-4)
    assert given.decision_function(function(X, X)) == pytest.approx(expected, abs=1e-4)
    assert called.support_vectors_.size == given.support_vectors_.size == 0


def test_working_sets_and_small_memory_give_the_same_model(monkeypatch):
    X, y = load_digits(return_X_y=True)
    expected = SVC(gamma=0.001, C=5, tol=1e-5).fit(X, y)
    monkeypatch.setattr(binary, "MAX_SINGLE_SET", 64)
    monkeypatch.setattr(binary, "WORKING_SET_LIMITS", (48, 48))
    monkeypatch.setattr(pairs, "MAX_MATRIX", 0)
    model = SVC(gamma=0.001, C=5, tol=1e-5, cache_size=0.1).fit(X, y)
    assert model.objective_ == pytest.approx(expected.objective_, rel=1e-6)
    assert model.intercept_ == pytest.approx(expected.intercept_, abs=1e-3)


def strided(X):
    return np.repeat(X, 2, axis=1)[:, ::2]


@pytest.mark.parametrize("form", [np.float64, np.float32, np.asfortranarray, strided, wide_sparse])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_linear_kernel_of_many_samples_is_summed_by_inputs(monkeypatch, form, classes):
    """Its gradient is X (Xᵀ beta), no row of K; the optimum is scikit-learn's."""
    for module in (pairs, kernel_matrix):
        monkeypatch.setattr(module, "MAX_MATRIX", 500)
    monkeypatch.setattr(binary, "MAX_SINGLE_SET", 300)
    asked = noted(monkeypatch, "_by_inputs")
    X, y = make_classification(
        500 * classes, 6, n_informative=5, n_redundant=0, n_classes=classes, random_state=0
    )
    X, options = form(X + 3), {"kernel": "linear", "C": 0.05, "tol": 1e-5}
    ours, again = (SVC(**options, backend="numba", n_jobs=n).fit(X, y) for n in (1, 2))
    theirs = svm.SVC(**options).fit(X, y)
    assert asked
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=2e-4)
    if classes == 2:
        found, expected = (model.decision_function(X) for model in (ours, theirs))
        np.testing.assert_allclose(found, expected, atol=1e-3)
    assert (ours.predict(X) == theirs.predict(X)).mean() > 0.998
    for name in ("_dual_coef_", "intercept_", "support_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(ours, name))


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        (1.0, {"kernel": "linear", "C": 0.1}),
        (1e-3, {"kernel": "linear", "C": 1e5}),
        (1.0, {"kernel": "poly", "degree": 2, "gamma": 1e-3, "cache_size": 0.5}),
    ],
)
def test_steps_come_to_an_end_where_kernel_values_are_nearly_equal(unit, options):
    """float32 would not tell them apart: with float32 working sets the objective rose."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2100, 5))
    y = X[:, 0] + 0.5 * rng.standard_normal(2100) > 0
    model = SVC(**options, max_iter=50_000).fit(unit * (X + 1000), y)
    assert model.fit_status_ == 0
    assert model.dual_gap_ < 1e-3 * abs(model.objective_)


@pytest.mark.parametrize("kernel", ["linear", "precomputed"])
def test_conditions_that_hold_by_rounding_alone_are_not_reported_in_silence(kernel):
    """Beside dates and numbers of customers, float64 has no digits left for other columns."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    y, model = (X @ [1, -1, 0.5] + 0.3 * rng.standard_normal(300) > 0), SVC(kernel=kernel)
    for offset in (0, 1e5):
        far = X + offset
        model.fit(far if kernel == "linear" else far @ far.T, y)
    far = X + 1e9
    with pytest.warns(UserWarning, match="conditions do not hold to tol=0.001. Center and scale"):
        model.fit(far if kernel == "linear" else far @ far.T, y)


@pytest.mark.parametrize("C", [1e16, 1e30, np.inf])
def test_so_are_conditions_after_steps_too_large_for_float64(C):
    """No plane divides these classes, so coefficients grow until digits are lost."""
    X = [[0, 0, 0], [0, 0, 1], [1, 2, 2], [2, 0, 1], [2, 0, 1], [0, 1, 1]]
    X += [[0, 2, 0], [1, 2, 0], [1, 1, 2], [0, 2, 0]]
    model = SVC(kernel="linear", C=C)
    with pytest.warns(UserWarning, match="do not hold to tol=0.001.* or take a smaller C"):
        model.fit(X, [0] * 6 + [1] * 4)
    assert model.fit_status_ == 0


@pytest.mark.filterwarnings("error")
def test_a_sum_that_is_off_by_the_rounding_of_many_steps_is_no_reason_to_warn():
    X, y = datasets.load_breast_cancer(return_X_y=True)  # unscaled: kernel values of 10,000,000
    model = SVC(kernel="linear", C=1e5).fit(X, y)
    beta, wide = np.zeros(len(y), np.longdouble), X.astype(np.longdouble)
    beta[model.support_] = -model.dual_coef_[0]
    f = np.where(y == 0, 1, -1) - wide @ (wide.T @ beta)
    rises, falls = beta < 1e5 * (y == 0), beta > -1e5 * (y == 1)
    assert f[rises].max() - f[falls].min() < 2 * model.tol


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 4])
def test_a_linear_model_predicts_by_a_center_a_pair(backend, dtype, classes):
    X, y = make_classification(
        300, 6, n_informative=5, n_redundant=0, n_classes=classes, random_state=0
    )
    X = (X + 3).astype(dtype)
    model = SVC(kernel="linear", C=0.1, decision_function_shape="ovo", backend=backend).fit(X, y)
    outputs = model.decision_function(X).reshape(300, -1)
    assert len(model._prepared()[0].centers) == outputs.shape[1] < len(model.support_)
    K = X.astype(float) @ model.support_vectors_.astype(float).T
    W = pair_weights(model._dual_coef_, model._n_support).dense()
    truth = (-1 if classes == 2 else 1) * (K @ W + model._intercept_)
    np.testing.assert_allclose(outputs, truth, atol=1e-9)
    alone = np.vstack([model.decision_function(X[i : i + 1]).reshape(1, -1) for i in range(9)])
    np.testing.assert_allclose(alone, outputs[:9], rtol=0, atol=0 if backend == "numba" else 1e-12)


def test_every_backend_gives_the_same_model(backend):
    expected, model = SVC(gamma=0.001).fit(X, y), SVC(gamma=0.001, backend=backend).fit(X, y)
    assert backend in model.backend_info_
    assert np.array_equal(model.support_, expected.support_)
    assert model.decision_function(X) == pytest.approx(expected.decision_function(X), abs=1e-3)


@pytest.mark.slow
def test_mnist_is_scikit_learns(mnist):
    """Of four classes, whose pairs are solved by working sets, as those of all images are."""
    X, y, X_test, _ = mnist
    X, y, X_test = X[y < 4][:6000] / 255, y[y < 4][:6000], X_test / 255
    ours, theirs = (model(C=10, gamma=0.02).fit(X, y) for model in (SVC, svm.SVC))
    assert ours.objective_ == pytest.approx(objectives(theirs, X, y), rel=1e-4)
    assert abs(len(ours.support_) - len(theirs.support_)) <= 0.01 * len(theirs.support_)
    assert (ours.predict(X_test[:2000]) != theirs.predict(X_test[:2000])).mean() <= 0.001


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("samples", "n"), [(200, 45_000), (5000, 1_000_000)])
def test_wide_sparse_data_are_never_made_dense(kernel, samples, n):
    """As dense arrays the larger data would take 40 GB."""
    rng = np.random.default_rng(0)
    samples = min(samples, 300) if kernel == "laplacian" else samples
    y = rng.integers(0, 3, samples)
    X = sp.random_array((samples, n), density=20 / n, rng=rng, format="csr")
    X += sp.csr_array((np.ones(samples), (np.arange(samples), y)), shape=X.shape)
    tol = 1e-6 if n == 45_000 else 1e-3
    model = SVC(kernel=kernel, cache_size=20, gamma=0.1, tol=tol).fit(X, y)
    assert sp.issparse(model.support_vectors_) and model.backend_ == "scipy"
    if n == 45_000:
        dense = clone(model).fit(X.toarray(), y).decision_function(X.toarray())
        assert model.decision_function(X) == pytest.approx(dense, abs=5e-3)
    else:
        assert model.score(X[:500], y[:500]) > 0.9


def test_a_named_backend_refuses_sparse_data_that_are_too_wide():
    X = sp.random_array((100, 200_000), density=1e-4, rng=np.random.default_rng(0), format="csr")
    with pytest.raises(ValueError, match="use backend='auto'"):
        SVC(backend="numpy", gamma=0.1).fit(X, np.arange(100) % 2)


@pytest.mark.parametrize("result", [None, 1.0, np.ones(30), np.ones((30, 30, 1)), np.eye(7)])
def test_a_function_for_a_kernel_gives_a_matrix_with_a_row_for_each_sample(result):
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2
    with pytest.raises(ValueError, match=r"must return a matrix of 30 rows.*got shape"):
        SVC(kernel=lambda A, B: result).fit(X, y)
    model = SVC(kernel=lambda A, B: A @ B.T if len(A) == 30 else result).fit(X, y)
    with pytest.raises(ValueError, match=r"must return a matrix of 9 rows.*got shape"):
        model.predict(X[:9])


@pytest.mark.parametrize("steps", [2**31 - 1, 2**31])
def test_any_number_of_steps_is_reported(steps, monkeypatch):
    end = pairs.PairsSolver._end

    def after_hours(self, p, solution):
        end(self, p, replace(solution, steps=steps))

    monkeypatch.setattr(pairs.PairsSolver, "_end", after_hours)
    model = SVC(max_iter=-1).fit(X[:60], y[:60] % 3)
    assert (model.n_iter_ == steps).all() and (model.n_iter_.dtype == np.int32) == (steps < 2**31)


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("storage", [np.asarray, sp.csr_matrix])
def test_equal_support_vectors_of_a_class_are_evaluated_once(storage, n_classes):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 5, (3000, 2)) * 0.3, rng.integers(0, n_classes, 3000)
    model = SVC(decision_function_shape="ovo").fit(storage(X), y)
    V, n_support = X[model.support_], model.n_support_
    layer, _ = model._prepared()
    parts = np.split(V, np.cumsum(n_support)[:-1])
    assert layer.centers.shape[0] == sum(len(np.unique(part, axis=0)) for part in parts) < len(V)
    W = pair_weights(model._dual_coef_, n_support).dense()
    K = reference.hidden(X, V, "euclidean", "gaussian", model._gamma)
    expected = (-1 if n_classes == 2 else 1) * (K @ W + model._intercept_)
    found = model.decision_function(storage(X)).reshape(len(X), -1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=model.tol / 4)
