"""Rows of wide CSR samples with few entries: those alone are multiplied, to the same answers."""

import pickle
import tracemalloc

import numpy as np
import pytest
import reference
import scipy.sparse as sp
from callers import layer_of, sums_of
from sklearn.base import clone

from gpurbf import FSVC, SVC, RBFClassifier, config_context
from gpurbf.layer import sparse
from gpurbf.layer.activation import Activation
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.threads import limited
from gpurbf.solvers.ridge.fixed_point import fixed_point

n, m, k = 1500, 300, 3
rng = np.random.default_rng(0)


def samples(dtype, density=0.01, N=150):
    return sp.random_array((N, n), density=density, rng=rng, format="csr", dtype=dtype)


@pytest.fixture(params=["thin", "mixed"])
def X(request):
    X = samples(np.float64)
    if request.param == "mixed":
        X = sp.vstack([X[:70], samples(np.float64, 0.2, 20), X[70:]], format="csr")
        assert not sparse.sparse_rows(X).all()
    return X


GAMMAS = {"gaussian": 0.05, "laplacian": 0.3, np.sqrt: 1.0}
ACTIVATIONS = [Activation("euclidean", *given) for given in GAMMAS.items()]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", [*ACTIVATIONS, Activation("dot", "poly", 0.1, 1.0)], ids=str)
def test_the_layer_is_that_of_the_formula(backend, activation, dtype, X):
    C = samples(dtype, N=m).toarray()
    layer = HiddenLayer(C, activation, backend=backend)
    X, W = X.astype(dtype), rng.normal(size=(m, k))
    H = reference.hidden(X.toarray(), C, *activation)
    bound = reference.TOLERANCE[np.dtype(dtype)]
    np.testing.assert_allclose(layer.activations(X), H, rtol=bound, atol=bound)
    np.testing.assert_allclose(layer.matvec(X, W), H @ W, rtol=0, atol=20 * bound * np.abs(H).max())
    w, T, mean = rng.uniform(1, 2, X.shape[0]), rng.normal(size=(X.shape[0], k)), H.mean(axis=0)
    G, B = sums_of(layer, X, T, w, mean)
    V = (H - mean) * np.sqrt(w)[:, None]
    size = np.abs(V.T @ V).max()
    np.testing.assert_allclose(G, V.T @ V, rtol=0, atol=20 * bound * size)
    np.testing.assert_allclose(B, V.T @ (T * np.sqrt(w)[:, None]), rtol=0, atol=20 * bound * size)


def test_no_row_notices_its_neighbours_threads_or_the_budget(backend, X):
    if backend == "cupy":
        pytest.skip("cuBLAS has all rows, made dense")
    layer = layer_of(samples(np.float64, N=m).toarray(), backend=backend)
    W = rng.normal(size=(m, k))
    thin = sparse.sparse_rows(X)  # others are a BLAS's, whose sums depend on where a row lies
    H, S = layer.activations(X), layer.matvec(X, W)
    order = rng.permutation(X.shape[0])
    with limited(1), config_context(memory=0.1):
        for got, expected in ((layer.activations(X[order]), H), (layer.matvec(X[order], W), S)):
            np.testing.assert_array_equal(got[thin[order]], expected[order[thin[order]]])
    for i in (0, 69, 100):
        np.testing.assert_array_equal(layer.activations(X[i : i + 1]), H[i : i + 1])
        np.testing.assert_array_equal(layer.matvec(X[i : i + 1], W), S[i : i + 1])


@pytest.mark.parametrize(
    "options", [{"solver": "ridge"}, {"solver": "cg"}, {"metric": "manhattan"}], ids=str
)
def test_a_classifier_says_what_it_says_of_dense_samples_and_their_median_distance(options, X):
    y = rng.integers(0, k, X.shape[0])
    model = RBFClassifier(100, gamma="median", random_state=0, alpha=1e-3, **options)
    some, dense = (clone(model).fit(samples, y) for samples in (X, X.toarray()))
    assert some.gamma_ == dense.gamma_
    found, expected = some.decision_function(X), dense.decision_function(X.toarray())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(some.coef_, dense.coef_, rtol=0, atol=1e-6)


def test_centers_that_came_as_csr_are_those_that_came_dense(backend, X):
    # And so are the sums.
    C, T = samples(np.float32, N=m), rng.normal(size=(X.shape[0], k))
    given, dense = (layer_of(c, backend=backend) for c in (C, C.toarray()))
    assert sp.issparse(given.sparse_centers) and sp.issparse(dense.sparse_centers)
    assert given.centers is C and type(dense.centers) is np.ndarray
    np.testing.assert_array_equal(given.activations(X), dense.activations(X))
    found, same = (fixed_point(one, X, 1e-3) for one in (given, dense))
    assert (found[1] is None) == (not given.exact_sums)
    np.testing.assert_equal(found, same)
    np.testing.assert_equal(sums_of(given, X, T), sums_of(dense, X, T))


MODELS = [RBFClassifier(100, solver=solver) for solver in ("ridge", "cg", "lms")]


@pytest.mark.parametrize("model", [*MODELS, RBFClassifier(100, gamma="median")], ids=str)
def test_a_model_never_makes_all_centers_of_such_samples_dense(model):
    X, y = sp.hstack([samples(np.float64), sp.csr_array((150, 600_000))], "csr"), np.arange(150) % k
    tracemalloc.start()
    model.set_params(random_state=0).fit(X, y)
    scores, peak = model.decision_function(X), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (model.centers_ != X[model.center_indices_]).nnz == 0
    pickled = pickle.dumps(model)
    assert len(pickled) < peak < 8 * 100 * 600_000 / 2  # bytes of half of a dense copy
    np.testing.assert_array_equal(pickle.loads(pickled).decision_function(X), scores)


def test_a_pass_makes_few_rows_dense_at_a_time():
    X = sp.hstack([samples(np.float64, N=3000), sp.csr_array((3000, 18_500))], "csr")
    with config_context(memory=32):
        tracemalloc.start()
        model = FSVC(20.0, random_state=0).fit(X, np.arange(3000) % 2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert model.centers_.shape[1] == 20_000 and peak < 8 * 3000 * 20_000 / 2


@pytest.mark.parametrize("method", ["fit", "predict"])
def test_many_rows_are_copied_a_few_at_a_time(method):
    """All of them were, in a fit twice, however little memory there was."""
    X, y = samples(np.float64, 0.025, 40_000), np.arange(40_000) % k
    assert 0.5 < sparse.sparse_rows(X).mean() < 1
    model = RBFClassifier(20, random_state=0, gamma=0.1).fit(X[:2000], y[:2000])
    with config_context(memory=1):
        tracemalloc.start()
        getattr(model, method)(*(X, y) if method == "fit" else (X,))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 0.8 * (X.data.nbytes + X.indices.nbytes)


def test_the_products_are_those_of_the_same_order_in_dense_centers(X):
    # Entry by entry: whether centers are dense or few entries changes no bit of a row.
    X, C = X[sparse.sparse_rows(X)], samples(np.float64, 0.03, N=m)
    C.data[::7] = 0  # stored zeros are numbers like others
    few, dense = (np.full((X.shape[0], m), np.nan) for _ in range(2))
    sparse._multiply(X, sparse.Columns(C), few)
    by_inputs = np.ascontiguousarray(C.toarray().T)
    by_inputs.flags.writeable = False
    sparse._multiply(X, by_inputs, dense)
    np.testing.assert_array_equal(few, dense)
    np.testing.assert_allclose(few, (X @ C.T).toarray(), rtol=1e-14)


@pytest.mark.parametrize(("dtype", "index"), [(np.float32, np.int32), (np.float64, np.int64)])
@pytest.mark.parametrize("width", [n, 200_000])  # of the wider no dense copy is made
@pytest.mark.parametrize("parts", [1, 2])
def test_entries_in_no_order_or_given_in_two_parts_are_learned_as_they_are(
    parts, width, dtype, index
):
    X = sp.random_array((150, width), density=20 / width, rng=rng, format="csr", dtype=dtype)
    order = np.repeat(np.arange(X.nnz), parts)
    if parts == 1:
        order = np.lexsort((-X.indices, np.repeat(np.arange(150), np.diff(X.indptr))))
    arrays = X.data[order] / dtype(parts), X.indices[order].astype(index)
    stored = sp.csr_array((*arrays, (parts * X.indptr).astype(index)), shape=X.shape)
    y = rng.integers(0, k, 150)
    assert stored.indices.dtype == index and not stored.has_canonical_format
    for model in (RBFClassifier(100, random_state=0, precision="float64"), SVC()):
        expected = clone(model).fit(X, y).decision_function(X)
        got = model.fit(stored, y).decision_function(stored)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_input_far_from_zero_costs_no_digits(backend, dtype):
    A = samples(np.float64).toarray()
    A[:, 0] = 1e9 + np.arange(len(A)) / 16  # of float32 samples a few numbers are left
    A = A.astype(dtype)
    expected = reference.hidden(A, A[:40], "euclidean", "gaussian", 0.05)
    for C in (A[:40], sp.csr_array(A[:40])):
        H = layer_of(C, 0.05, backend=backend).activations(sp.csr_array(A))
        np.testing.assert_allclose(H, expected, rtol=0, atol=1e-5 if dtype is np.float32 else 1e-9)
    answers = [
        SVC(gamma=0.05).fit(S, np.arange(len(A)) < 75).predict(S) for S in (A, sp.csr_array(A))
    ]
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("offset", [1e5, 1.7e9])
@pytest.mark.parametrize("N", [150, 1200])
def test_svc_that_keeps_samples_sparse_loses_no_digits_by_an_input_far_from_zero(N, offset):
    own = np.random.default_rng(0)
    thin = sp.random_array((N + 50, 200_000), density=1e-4, rng=own, format="csr")
    near = np.round(64 * own.normal(size=(N + 50, 2))) / 64  # float64 holds it beside the offset
    shifts = (0.0, 0.0), (offset, 0.0)
    X, there = (sp.hstack([thin, np.add(near, by)], format="csr") for by in shifts)
    y = near.sum(axis=1) > 0
    expected, model = (SVC(gamma=0.05).fit(A[:N], y[:N]) for A in (X, there))
    assert model.backend_ == "scipy"
    np.testing.assert_array_equal(model.support_, expected.support_)
    outputs = model.decision_function(there[N:])
    np.testing.assert_allclose(outputs, expected.decision_function(X[N:]), rtol=0, atol=1e-5)
    # A sample without an entry in that input is far from all others.
    outputs = model.decision_function(sp.csr_array((1, there.shape[1])))
    np.testing.assert_allclose(outputs, model.intercept_, rtol=0, atol=1e-12)


def test_what_is_left_to_sparse_products():
    C, X = samples(np.float64, N=5).toarray(), samples(np.float64)
    full = samples(np.float64, 0.2)
    assert layer_of(C).sparse_rows(X).all() and sp.issparse(sparse.sparse_or_dense(C))
    for layer, rows in [
        (layer_of(C), X.toarray()),
        (layer_of(C), full),
        (layer_of(C[:, :1000]), X[:, :1000]),
        (layer_of(C, precision="float32"), X),
        (layer_of(C, metric="manhattan"), X),
        # Counts are codes, and dense tiles of those are faster still.
        (layer_of(np.sign(C)), X.sign()),
    ]:
        assert layer.sparse_rows(rows) is None
    for stored in (full, full.toarray()):  # the values decide, not how they are stored
        assert not sp.issparse(sparse.sparse_or_dense(stored))
