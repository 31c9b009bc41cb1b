"""Every estimator against an independent implementation: formulas, scikit-learn, a naive loop."""

from itertools import combinations

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from sklearn import svm

from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer
from gpurbf.fsvc import units
from gpurbf.layer.activation import PROFILES
from gpurbf.svm.ovo import pair_weights
from tests import reference
from tests.campaign.cases import AROUND, EXACT, dense, storages, tables
from tests.campaign.rounds import campaign

METRICS = ("euclidean", "manhattan")
FLOATS = ("float64", "float32")


def spread(X, C):
    """The largest |x|² about the mean of the centers, which products of distances are sums of."""
    mean = C.mean(axis=0)
    return max(np.square(A - mean).sum(axis=1).max() for A in (X, C))


def activations(X, C, metric, profile, gamma, *, dtype, exact):
    """H by its definition, and how far from it an answer in that arithmetic may be.

    Distances by products err by the rounding of |x|², by differences by that of their sum. What an
    error of d² does to a profile is found by asking it.
    """
    H = reference.hidden(X, C, metric, profile, gamma)
    eps, n = np.finfo(dtype).eps, X.shape[1]
    within = 4 * reference.TOLERANCE[np.dtype(dtype)]
    bound = within * np.maximum(1, np.abs(H))
    d = reference.METRICS[metric](X, C)
    if metric == "manhattan":
        # Centers and samples less than 2 in value, or their own magnitude, are rounded once.
        off = 4 * (n + 8) * eps * (d.max() + (0 if exact else np.abs(X).max() + np.abs(C).max()))
        low, high = np.maximum(0, d - off), d + off
    else:
        off = 0 if exact else 8 * (n + 8) * eps * spread(X, C)
        low, high = np.sqrt(np.maximum(0, d * d - off)), np.sqrt(d * d + off)
    for moved in (low, high):
        bound = bound + np.abs(reference.PROFILES[profile](moved, gamma) - H)
    return H, bound


@campaign(
    "differential",
    60,
    table=tables(),
    storage=storages(),
    around=AROUND,
    profile=st.sampled_from(sorted(PROFILES & reference.PROFILES.keys())),
    metric=st.sampled_from(METRICS),
    scale=st.floats(0.01, 30),
    m=st.integers(1, 50),
)
def test_layer_is_the_formula(table, storage, around, profile, metric, scale, m):
    X, _ = table.make()
    X = storage.of(X)
    rows = table.rng().integers(0, table.N, m)
    C = X[rows].toarray() if storage.order == "sparse" else X[rows]
    A, B = dense(X), dense(C)
    typical = reference.METRICS[metric](A, B).mean() or 1.0
    power = 1 if profile in ("laplacian", "triangular") else 2
    gamma = scale / typical**power
    model = RBFLayer(
        centers=C, kernel=profile, metric=metric, gamma=gamma, backend=around.backend
    ).fit(X)
    with around():
        H = model.transform(X)
        exact = "exact" in model._layer().describe() or storage.dtype == "uint8"
    expected, bound = activations(A, B, metric, profile, gamma, dtype=H.dtype, exact=exact)
    assert (np.abs(H - expected) <= bound).all(), np.abs(H - expected).max()
    assert (
        not exact
        or table.values in (*EXACT, "few distinct", "one odd row", "constant columns")
        or (storage.dtype == "uint8")
    )


@campaign(
    "differential",
    40,
    table=tables(N=200, k=4),
    storage=storages(),
    around=AROUND,
    metric=st.sampled_from(METRICS),
    alpha=st.sampled_from([1e-3, 1e-2, 1.0]),
    fit_intercept=st.booleans(),
    weighted=st.booleans(),
    m=st.integers(1, 60),
)
def test_rbf_is_the_ridge_on_its_centers(
    table, storage, around, metric, alpha, fit_intercept, weighted, m
):
    X, y = table.make()
    X, rng = storage.of(X), table.rng()
    weights = rng.integers(0, 4, table.N) + 0.25 if weighted else None
    C = dense(X)[rng.integers(0, table.N, m)]
    typical = reference.METRICS[metric](dense(X), C).mean() or 1.0
    model = RBFClassifier(
        centers=C.astype(storage.dtype),
        metric=metric,
        gamma=1 / typical**2,
        alpha=alpha,
        fit_intercept=fit_intercept,
        backend=around.backend,
    )
    with around():
        scores = model.fit(X, y, weights).decision_function(X)
    k = len(model.classes_)
    T = np.eye(k)[y] if k > 2 else np.where(y == 1, 1.0, -1.0)[:, None]
    H = reference.hidden(dense(X), C, metric, "gaussian", 1 / typical**2)
    assume(np.ptp(H) > 1e-6)  # all alike: nothing to penalise
    W, intercept = reference.ridge(H, T, weights, alpha, fit_intercept)
    expected = H @ W + intercept
    eps = np.finfo(model._layer().dtype).eps
    # An error of H as large as eps times what its distances are made of, divided by the penalty.
    size = spread(dense(X), C) if metric == "euclidean" else np.abs(dense(X)).max() * typical
    bound = 2 * eps * (table.n + 8) * (1 + size / typical**2) * np.sqrt(m) / alpha
    scores = scores.reshape(expected.shape)
    assert np.abs(scores - expected).max() <= bound
    lead = np.sort(np.abs(expected) if k == 2 else expected, axis=1)
    sure = lead[:, 0] > 2 * bound if k == 2 else lead[:, -1] - lead[:, -2] > 2 * bound
    winners = (expected[:, 0] > 0).astype(int) if k == 2 else expected.argmax(axis=1)
    with around():
        assert (model.predict(X)[sure] == winners[sure]).all()


KERNEL_OF = {
    "rbf": ("euclidean", "gaussian"),
    "linear": ("dot", "linear"),
    "poly": ("dot", "poly"),
    "sigmoid": ("dot", "sigmoid"),
}


@campaign(
    "differential",
    40,
    table=tables(N=90, n=12, k=4, values=("sixteenths", "signed", "real", "offset", "one odd row")),
    storage=storages(dtypes=FLOATS),
    around=AROUND,
    kernel=st.sampled_from(sorted(KERNEL_OF)),
    C=st.sampled_from([0.1, 1.0, 30.0]),
    weighted=st.booleans(),
)
def test_svc_agrees_with_scikit_learn(table, storage, around, kernel, C, weighted):
    X, y = table.make()
    X = X - X.mean(axis=0) if table.values == "offset" and kernel != "rbf" else X
    X = storage.of(X / max(1.0, np.abs(X - X.mean()).max()) if kernel != "rbf" else X)
    A, rng = dense(X), table.rng()
    weights = np.exp(rng.uniform(-1, 1, table.N)) if weighted else None
    gamma = 1 / (table.n * A.var()) if kernel == "rbf" and A.var() else 1.0
    options = {"kernel": kernel, "C": C, "gamma": gamma, "coef0": 0.5, "tol": 1e-4}
    ours = SVC(backend="auto" if storage.order == "sparse" else around.backend, **options)
    with around():
        ours.fit(X, y, weights)
        ours.decision_function_shape = "ovo"
        decisions, labels = ours.decision_function(X), ours.predict(X)
    theirs = svm.SVC(decision_function_shape="ovo", **options).fit(A, y, weights)
    metric, profile = KERNEL_OF[kernel]
    K = reference.hidden(A, A, metric, profile, gamma, 0.5, 3)
    factors = C * (np.ones(table.N) if weights is None else weights)
    for (part, _, mine), (*_, other) in zip(
        *(pairs_of(model, K, A, y, factors) for model in (ours, theirs))
    ):
        assert mine["feasible"]
        assert mine["violation"] <= 2e-4 + 1e-5 * np.abs(part).max() * C
        if kernel != "sigmoid":  # not convex: there is more than one optimum
            size = 1 + abs(other["objective"])
            assert mine["objective"] <= other["objective"] + 2e-3 * size
    if kernel == "sigmoid":
        return
    expected = theirs.decision_function(A)
    near = 0.02 * (1 + np.abs(expected).max()) * max(1.0, C)
    # Where no coefficient is between its bounds any number of an interval is an intercept.
    apart = np.abs((decisions - ours.intercept_) - (expected - theirs.intercept_))
    assert apart.max() <= near
    if np.abs(ours.intercept_ - theirs.intercept_).max() <= near:
        sure = np.abs(expected).reshape(table.N, -1).min(axis=1) > 2 * near
        assert (labels[sure] == theirs.predict(A)[sure]).all()


def pairs_of(model, K, A, y, C):
    """Of each pair of classes, of samples of a C above 0: its kernel, coefficients and dual."""
    for beta, (a, b) in zip(betas(model, A).T, combinations(model.classes_, 2)):
        rows = np.flatnonzero(((y == a) | (y == b)) & (C > 0))
        own, bounds, part = beta[rows], C[rows], K[np.ix_(rows, rows)]
        # Coefficients that are C but for a rounding are C.
        own = np.where(np.abs(np.abs(own) - bounds) < 1e-12 * bounds, np.sign(own) * bounds, own)
        yield part, own, reference.svc_dual(part, np.where(y[rows] == a, 1.0, -1.0), bounds, own)


def betas(model, A):
    """y alpha (N, n_pairs) of the fitted attributes, positive for the first class of the pair."""
    dual = np.atleast_2d(dense(model.dual_coef_))
    W = pair_weights(dual if len(model.classes_) > 2 else -dual, model.n_support_).dense()
    beta = np.zeros((len(A), W.shape[1]))
    beta[model.support_] = W
    return beta


@campaign(
    "differential",
    40,
    table=tables(N=150, n=15, k=4),
    storage=storages(dtypes=FLOATS),
    around=AROUND,
    kernel=st.sampled_from(units.KERNELS),
    metric=st.sampled_from(units.METRICS),
    per_class=st.booleans(),
    ridge=st.booleans(),
    overlap=st.sampled_from([0.5, 1.0, 2.0]),
    scale=st.floats(0.1, 1.0),
)
def test_fsvc_is_the_naive_loop(
    table, storage, around, kernel, metric, per_class, ridge, overlap, scale
):
    X, y = table.make()
    X = storage.of(X)
    A = dense(X)
    typical = np.median(reference.fsvc_distance(A, A[0], metric)) or 1.0
    model = FSVC(
        radius := scale * typical,
        overlap=overlap,
        kernel=kernel,
        metric=metric,
        selection="per-class" if per_class else "pass",
        eval_radius=None,
        solver="ridge" if ridge else "one-hot",
        alpha=1e-2,
        shuffle=False,
        outside="zero",
        backend="numpy" if metric == "manhattan" and around.backend == "mkl" else around.backend,
    )
    with around():
        scores = model.fit(X, y).decision_function(X)
    groups = [np.flatnonzero(y == c) for c in range(table.k)] if per_class else [np.arange(table.N)]
    groups = [rows for rows in groups if len(rows)]
    rule = (radius, overlap, kernel, metric)
    assume(not any(near_the_threshold(A[rows], *rule) for rows in groups))
    centers = np.concatenate([rows[reference.fsvc_pass(A[rows], *rule)] for rows in groups])
    assert (model.center_indices_ == centers).all()
    D = np.array([reference.fsvc_distance(A[centers], x, metric) for x in A])
    H = reference.fsvc_unit(D, kernel, radius)
    T = np.eye(table.k)[y]
    W = reference.ridge(H, T, None, 1e-2, False)[0] if ridge else T[centers]
    expected = H @ W
    expected = expected[:, 1] - expected[:, 0] if table.k == 2 else expected
    eps = np.finfo(model._layer().dtype).eps
    off = 8 * (table.n + 8) * eps * spread(A, A[centers])
    moved = np.sqrt(D * D + off) if metric == "euclidean" else D + off
    if metric == "manhattan":
        moved = D + 8 * (table.n + 8) * eps * (D.max() + np.abs(A).max())
    worst = np.abs(reference.fsvc_unit(moved, kernel, radius) - H).max() + 100 * eps
    assert np.abs(scores - expected).max() <= 10 * len(centers) * worst / (1e-2 if ridge else 1)


def near_the_threshold(X, radius, overlap, kernel, metric):
    """Whether a sample's activity is so near to `overlap` that the order of a sum decides."""
    centers = reference.fsvc_pass(X, radius, overlap, kernel, metric)
    for i, x in enumerate(X):
        before = centers[centers < i]
        phi = reference.fsvc_unit(reference.fsvc_distance(X[before], x, metric), kernel, radius)
        if 0 < abs(phi.sum() - overlap) < 1e-12 * (1 + len(before)):
            return True
    return False
