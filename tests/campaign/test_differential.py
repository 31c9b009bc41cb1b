"""The hidden layer against its formulas, and FSVC against a naive loop."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from gpurbf import FSVC, RBFLayer
from gpurbf.fsvc import units
from gpurbf.layer.activation import PROFILES
from tests import reference
from tests.campaign.cases import AROUND, EXACT, dense, storages, tables
from tests.campaign.rounds import campaign

METRICS = ("euclidean", "manhattan")


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
    table=tables(N=150, n=15, k=4),
    storage=storages(dtypes=("float64", "float32")),
    around=AROUND,
    kernel=st.sampled_from(units.KERNELS),
    metric=st.sampled_from(units.METRICS),
    per_class=st.booleans(),
    overlap=st.sampled_from([0.5, 1.0, 2.0]),
    scale=st.floats(0.1, 1.0),
)
def test_centers_of_fsvc_are_those_of_the_naive_loop(
    table, storage, around, kernel, metric, per_class, overlap, scale
):
    """Its outputs for these centers are compared in test_freedom.py."""
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
        solver="one-hot",
        shuffle=False,
        backend="numpy" if metric == "manhattan" and around.backend == "mkl" else around.backend,
    )
    with around():
        model.fit(X, y)
    groups = [np.flatnonzero(y == c) for c in range(table.k)] if per_class else [np.arange(table.N)]
    groups = [rows for rows in groups if len(rows)]
    rule = (radius, overlap, kernel, metric)
    assume(not any(near_the_threshold(A[rows], *rule) for rows in groups))
    centers = np.concatenate([rows[reference.fsvc_pass(A[rows], *rule)] for rows in groups])
    assert (model.center_indices_ == centers).all()


def near_the_threshold(X, radius, overlap, kernel, metric):
    """Whether a sample's activity is so near to `overlap` that the order of a sum decides."""
    centers = reference.fsvc_pass(X, radius, overlap, kernel, metric)
    for i, x in enumerate(X):
        before = centers[centers < i]
        phi = reference.fsvc_unit(reference.fsvc_distance(X[before], x, metric), kernel, radius)
        if 0 < abs(phi.sum() - overlap) < 1e-12 * (1 + len(before)):
            return True
    return False
