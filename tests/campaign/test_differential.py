"""The hidden layer against its formulas, and FSVC against a naive loop."""

from functools import partial

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from gpurbf import FSVC, RBFLayer
from gpurbf.fsvc import units
from gpurbf.layer.activation import PROFILES
from tests import reference
from tests.campaign.cases import AROUND, EXACT, batches, dense, storages, tables
from tests.campaign.rounds import campaign

METRICS = ("euclidean", "manhattan")


def spread(X, C):
    """The largest |x|² about the mean of the centers, which products of distances are sums of."""
    mean = C.mean(axis=0)
    return max(np.square(A - mean).sum(axis=1).max() for A in (X, C))


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
    """As far as the arithmetic goes; and what is called exact is on a quantization.

    Distances by products err by the rounding of |x|², by differences by that of their sum. What an
    error of d² does to a profile is found by asking it.
    """
    X, _ = table.make()
    X = storage.of(X)
    rows = table.rng().integers(0, table.N, m)
    C = X[rows].toarray() if storage.order == "sparse" else X[rows]
    A, B = dense(X), dense(C)
    d = reference.METRICS[metric](A, B)
    power = 1 if profile in ("laplacian", "triangular") else 2
    options = {"kernel": profile, "metric": metric, "gamma": scale / (d.mean() or 1.0) ** power}
    model = RBFLayer(centers=C, backend=around.backend, **options).fit(X)
    with around():
        H = model.transform(X)
        exact = "exact" in model._layer().describe() or storage.dtype == "uint8"
    unit = partial(reference.PROFILES[profile], g=options["gamma"])
    some = 4 * (X.shape[1] + 8) * np.finfo(H.dtype).eps
    if metric == "manhattan":
        # Centers and samples less than 2 in value, or their own magnitude, are rounded once.
        off = some * (d.max() + (0 if exact else np.abs(A).max() + np.abs(B).max()))
        moved = np.maximum(0, d - off), d + off
    else:
        off = 0 if exact else 2 * some * spread(A, B)
        moved = np.sqrt(np.maximum(0, d * d - off)), np.sqrt(d * d + off)
    bound = 4 * reference.TOLERANCE[H.dtype] * np.maximum(1, np.abs(unit(d)))
    bound += sum(np.abs(unit(by) - unit(d)) for by in moved)
    assert (np.abs(H - unit(d)) <= bound).all(), np.abs(H - unit(d)).max()
    quantized = (*EXACT, "few distinct", "one odd row", "constant columns")
    assert not exact or table.values in quantized or storage.dtype == "uint8"


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
    cuts=st.none() | st.lists(st.integers(1, 149), max_size=3),
)
def test_centers_of_fsvc_are_those_of_the_naive_loop(
    table, storage, around, kernel, metric, per_class, overlap, scale, cuts
):
    """In batches too. Its outputs for these centers are compared in test_freedom.py."""
    X, y = table.make()
    X = storage.of(X)
    A = dense(X)
    radius = scale * (np.median(reference.fsvc_distance(A, A[0], metric)) or 1.0)
    selection = {"selection": "per-class" if per_class else "pass", "eval_radius": None}
    rule = {"overlap": overlap, "kernel": kernel, "metric": metric}
    model = FSVC(radius, **rule, **selection, solver="one-hot", shuffle=False)
    model.set_params(backend=around.backend)
    with around():
        if cuts is None:
            model.fit(X, y)
        else:
            for rows in batches(cuts, table.N):
                model.partial_fit(X[rows], y[rows], range(table.k))
    groups = [np.flatnonzero(y == c) for c in range(table.k)] if per_class else [np.arange(table.N)]
    centers = [rows[reference.fsvc_pass(A[rows], radius, **rule)] for rows in groups]
    for rows, own in zip(groups, centers):
        d = np.array([reference.fsvc_distance(A[own], x, metric) for x in A[rows]])
        phi = reference.fsvc_unit(d, kernel, radius) * (own < rows[:, None])
        off = np.abs(phi.sum(axis=1) - overlap)
        # Else the order of a sum decides.
        assume(not ((0 < off) & (off < 1e-12 * (1 + len(own)))).any())
    np.testing.assert_array_equal(model.center_indices_, np.concatenate(centers))
