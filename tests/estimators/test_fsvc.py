"""FSVC chooses the centers of the sequential pass however the work is cut; its other rules hold."""

import pickle
import tracemalloc
import weakref
from unittest.mock import Mock

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from callers import outputs
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning

from gpurbf import FSVC, RBFClassifier, RBFLayer, config_context, solvers
from gpurbf.fsvc.known import KnownLayer, Sample, held_out, select
from gpurbf.fsvc.selection import MARGIN, SELECTIONS, Pass, Rule
from gpurbf.fsvc.units import KERNELS, METRICS, Unit, direct_distance
from gpurbf.layer.layer import HiddenLayer
from tests import reference

# Selection, offset of the data, kernel, metric, radius and overlap.
PASSES = [
    ("pass", 0, "gaussian", "euclidean", 1.1, 1.0),
    ("pass", 0, "triangular", "euclidean", 0.9, 1.0),
    ("pass", 1e3, "triangular", "euclidean", 0.9, 1.0),
    ("pass", 1e6, "triangular", "euclidean", 0.9, 1.0),
    ("pass", 0, "gaussian", "manhattan", 3.0, 0.5),
    ("pass", 0, "triangular", "manhattan", 3.0, 1.0),
    ("pass", 0, "gaussian", "sqeuclidean", 2.0, 1.0),
    ("pass", 0, "triangular", "sqeuclidean", 1.5, 2.5),
    ("error", 0, "gaussian", "euclidean", 0.8, 1.0),
]
# Conjugate gradients are for many centers: FSVC refuses them.
SOLVERS = sorted(set(solvers.SOLVERS) - {"cg"})
DIGITS = load_digits().data / 8 - 1, load_digits().target
BLOBS = make_blobs(300, 3, centers=4, cluster_std=2.0, random_state=0)
OUTSIDE = "ignore:.*outside the radius of every center:UserWarning"


def cloud(n=700):
    """Real numbers off any quantization, with repeats and near-repeats among them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 6)) + 3
    X[n // 2 : n // 2 + 60] = X[:60]
    X[-60:] = X[60:120] + 1e-9
    y = (np.abs(X[:, 0] - 3) + 0.3 * rng.standard_normal(n) > 0.7).astype(int) + (X[:, 1] > 3.5)
    return X, y


X, y = cloud()


def ordered(**parameters):
    """FSVC as published but for what is given."""
    recipe = {"selection": "pass", "eval_radius": None, "shuffle": False, "solver": "one-hot"}
    return FSVC(**recipe | {"backend": "numpy"} | parameters)


@pytest.mark.parametrize("rule", PASSES, ids=str)
def test_centers_are_those_of_the_sequential_pass(rule, backend):
    """With selection="error" those of the novel that the network gets nearly wrong."""
    selection, offset, kernel, metric, radius, overlap = rule
    wrong = {"y": y, "margin": MARGIN} if selection == "error" else {}
    expected = reference.fsvc_pass(X + offset, radius, overlap, kernel, metric, **wrong)
    model = ordered(radius=radius, overlap=overlap, kernel=kernel, metric=metric, backend=backend)
    model.set_params(selection=selection).fit(X + offset, y)
    assert 20 < len(expected) < 600
    assert np.array_equal(model.center_indices_, expected)
    assert np.array_equal(model.centers_, (X + offset)[expected])


@pytest.mark.parametrize(("kernel", "radius"), [("gaussian", 0.05), ("triangular", 0.3)])
def test_where_activities_vanish_few_centers_are_looked_at(kernel, radius, backend, monkeypatch):
    """Tiles flush to 0 what the sequential pass and that over known distances know as subnormal."""
    distance = Mock(wraps=direct_distance)
    monkeypatch.setattr("gpurbf.fsvc.selection.direct_distance", distance)
    expected = reference.fsvc_pass(X, radius, 1.0, kernel, "euclidean", y, MARGIN)
    model = ordered(radius=radius, kernel=kernel, selection="error", backend=backend).fit(X, y)
    assert np.array_equal(model.center_indices_, expected)
    looked_at = [len(call.args[1]) for call in distance.call_args_list]
    assert len(looked_at) > 100 and np.mean(looked_at) < len(expected) / 20
    D = np.array([reference.fsvc_distance(X, x, "euclidean") for x in X])
    sample, unit = (
        Sample(D, D, y, y, None, np.ones(len(y)), np.arange(len(y))),
        Unit(kernel, "euclidean", radius),
    )
    assert np.array_equal(
        select(sample, Rule("error", 1.0, len(np.unique(y)), None), unit), expected
    )


@pytest.mark.parametrize("cuts", [(16, 16, 3), (37, 64, 100), (512, 4096, 8)])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_blocks_and_chunks_of_centers_do_not_change_the_choice(cuts, selection, monkeypatch):
    model = ordered(radius=1.1, selection=selection)
    expected = clone(model).fit(X, y).center_indices_
    names = "_MIN_BLOCK_ROWS", "_MAX_BLOCK_ROWS", "_CENTERS_PER_LAYER"
    for name, value in zip(names, cuts):
        monkeypatch.setattr(f"gpurbf.fsvc.selection.{name}", value)
    assert np.array_equal(model.fit(X, y).center_indices_, expected)


def test_activations_among_candidates_keep_to_the_budget(monkeypatch):
    made, activations = [], HiddenLayer.activations

    def spied(self, *args):
        made.append(activations(self, *args))
        return made[-1]

    model = ordered(radius=0.5)
    expected = clone(model).fit(X, y).center_indices_
    monkeypatch.setattr(HiddenLayer, "activations", spied)
    with config_context(memory=0.2):
        assert np.array_equal(model.fit(X, y).center_indices_, expected)
    assert len(made) > 2 and max(K.nbytes for K in made) <= 0.2 * 2**20 / 4


def test_activities_of_many_classes_keep_to_the_budget(monkeypatch):
    made, activity = [], Pass._activity

    def spied(self, *args):
        made.append(activity(self, *args))
        return made[-1]

    monkeypatch.setattr(Pass, "_activity", spied)
    with config_context(memory=0.5):
        model = ordered(radius=50.0, selection="error")
        model.fit(np.tile(X, (2, 1)), np.arange(2 * len(X)) % 500)
    assert len(made) > 2 and max(A.nbytes for A in made) <= 0.5 * 2**20 / 2


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_small_integers_are_never_rescaled(dtype, backend):
    X, y = DIGITS
    codes = (8 * (X[:600] + 1)).astype(dtype)
    model = ordered(radius=16.0, backend=backend).fit(codes, y[:600])
    assert model.centers_.dtype == dtype
    expected = ordered(radius=2.0, backend=backend).fit(X[:600], y[:600])
    assert np.array_equal(model.center_indices_, expected.center_indices_)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("cuts", [[1, 2, 3], [100, 101, 650], list(range(50, 700, 50))])
def test_a_stream_in_any_chunks_gives_the_centers_of_one_pass(selection, cuts):
    model = ordered(radius=1.1, selection=selection)
    whole = clone(model).fit(X, y)
    for part in np.split(np.arange(len(X)), cuts):
        model.partial_fit(X[part], y[part], classes=np.unique(y))
    assert np.array_equal(model.center_indices_, whole.center_indices_)
    assert np.array_equal(model.centers_, whole.centers_)
    assert np.array_equal(model.predict(X), whole.predict(X))


@pytest.mark.parametrize("selection", SELECTIONS)
def test_ridge_on_a_stream_counts_a_center_from_its_own_chunk_on(selection):
    model = ordered(radius=1.1, selection=selection, solver="ridge", alpha=1e-3)
    chunk = np.repeat([0, 1, 2], [300, 200, 200])
    for c in range(3):
        model.partial_fit(X[chunk == c], y[chunk == c], classes=[0, 1, 2])
    H = reference.hidden(X, model.centers_, "euclidean", "gaussian", 1 / (2 * 1.1**2))
    H *= chunk[:, None] >= chunk[model.center_indices_]
    W, _ = reference.ridge(H, np.eye(3)[y], None, 1e-3, False)
    np.testing.assert_allclose(model.coef_.T, W, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_chunk_without_weight_changes_nothing(solver):
    model = ordered(radius=1.1, solver=solver).partial_fit(X, y, classes=[0, 1, 2])
    before = model.coef_.copy()
    model.partial_fit(X, y, sample_weight=np.zeros(len(X)))
    assert np.array_equal(model.coef_, before)


def test_a_chunk_without_weight_does_not_change_the_arithmetic_of_others():
    A, b = np.round(4 * X), y
    model, other = (ordered(radius=3.0).partial_fit(A[:300], b[:300], [0, 1, 2]) for _ in range(2))
    other.partial_fit(A[:5] + 0.3, b[:5], sample_weight=np.zeros(5))
    for stream in (model, other):
        stream.partial_fit(A[300:], b[300:])
    assert other.backend_info_ == model.backend_info_
    assert np.array_equal(other.decision_function(A), model.decision_function(A))


def test_weights_that_grow_without_limit_are_refused_though_they_are_numbers():
    Z, y = np.round(10 * load_iris().data) + 0.25, load_iris().target
    model = ordered(radius=0.5, kernel="triangular", solver="lms", learning_rate=4.0, n_epochs=3)
    with pytest.raises(solvers.DivergenceError, match=r"exceed 1e\+18.* learning_rate=4 is too"):
        model.set_params(radius=20.0).fit(Z, y)


def test_sums_that_float32_cannot_tell_apart_are_made_in_float64():
    """Units that overlap widely; a forced float32 stays, and warns."""
    X = np.random.default_rng(0).standard_normal((1500, 2)).astype(np.float32)
    y = np.sin(3 * X[:, 0]) + X[:, 1] > 0
    model = FSVC(0.1, selection="pass", eval_radius=0.5, shuffle=False).fit(X, y)
    wide = clone(model).fit(X.astype(np.float64), y)
    assert len(model.centers_) > 256
    np.testing.assert_array_equal(model.coef_, wide.coef_)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.decision_function(X), model.decision_function(X))
    with pytest.warns(ConvergenceWarning, match="precision='float64'"):
        clone(model).set_params(precision="float32").fit(X, y)
    made = []

    class Watched(solvers.Ridge):
        def solve(self, normal, **options):
            assert not any(ref() for ref in made)  # each keeps a factor (m, m)
            solution = super().solve(normal, **options)
            made.append(weakref.ref(solution))
            return solution

    watched = clone(model).set_params(solver=Watched(1e-6, fit_intercept=False)).fit(X, y)
    assert len(made) == 2
    np.testing.assert_array_equal(watched.coef_, wide.coef_)


def test_lms_on_a_stream_takes_an_epoch_a_chunk_and_keeps_what_it_learned():
    model = ordered(radius=1.1, solver="lms", learning_rate=0.1)
    W = np.zeros((0, 3))
    for part in (slice(0, 400), slice(400, 700)):
        model.partial_fit(X[part], y[part], classes=[0, 1, 2])
        C = model.center_indices_
        W = np.concatenate([W, np.eye(3)[y[C[len(W) :]]]])
        H = reference.hidden(X[part], X[C], "euclidean", "gaussian", 1 / (2 * 1.1**2))
        W = reference.lms(H, np.eye(3)[y[part]], W, 0.1, 1)
    np.testing.assert_allclose(model.coef_.T, W, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("before", ["fit", "lms", "one-hot"])
@pytest.mark.parametrize("middle", [slice(0, 300), slice(300, 500)], ids=["known", "new"])
def test_the_pass_goes_on_and_sums_begin_anew_after_fit_or_another_solver(before, middle):
    model, seen = ordered(radius=1.1, solver="ridge", alpha=1e-3), np.r_[0:300, middle, 500:700]
    if before == "fit":
        model.fit(X[seen[:-200]], y[seen[:-200]])
    else:
        model.partial_fit(X[:300], y[:300], classes=[0, 1, 2])
        model.set_params(solver=before).partial_fit(X[middle], y[middle])
    with pytest.warns(UserWarning, match="nor does partial_fit with another solver.*trained anew"):
        model.set_params(solver="ridge").partial_fit(X[500:], y[500:])
    whole = reference.fsvc_pass(X[seen], 1.1, 1.0, "gaussian", "euclidean")
    assert np.array_equal(model.center_indices_, whole)
    H = reference.hidden(X[500:], model.centers_, "euclidean", "gaussian", 1 / (2 * 1.1**2))
    W, _ = reference.ridge(H, np.eye(3)[y[500:]], None, 1e-3, False)
    np.testing.assert_allclose(model.coef_.T, W, rtol=1e-6, atol=1e-8)


def test_a_stream_goes_on_from_a_model_that_may_only_be_read(tmp_path):
    model = ordered(radius=1.1, solver="ridge")
    model.partial_fit(X[:300], y[:300], classes=[0, 1, 2])
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    for stream in (model, mapped):
        stream.partial_fit(X[300:], y[300:])
    assert np.array_equal(mapped.coef_, model.coef_)


@pytest.mark.filterwarnings(OUTSIDE)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("radius", [1.0, "auto", "ratio"])
def test_weights_are_repetitions_and_order_does_not_matter(selection, solver, radius):
    X, y = BLOBS
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 4, len(y))
    mixed = rng.permutation(len(y))
    recipe = {"selection": selection, "solver": solver, "alpha": 1e-3, "backend": "numpy"}
    model = FSVC(radius, **recipe, learning_rate=0.01, random_state=0)
    weighted = clone(model).fit(X[mixed], y[mixed], weights[mixed])
    repeated = clone(model).fit(X.repeat(weights, axis=0), y.repeat(weights))
    assert weighted.radius_ == repeated.radius_
    assert np.array_equal(weighted.centers_, repeated.centers_)
    assert np.array_equal(X[mixed][weighted.center_indices_], weighted.centers_)
    found, expected = outputs(weighted, X), outputs(repeated, X)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("container", [sp.csr_matrix, sp.csr_array])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_sparse_samples_give_the_model_of_dense_ones(container, selection):
    X, y = DIGITS
    X = X[:500] + 1
    model = FSVC(2.0, selection=selection, backend="numpy", random_state=0)
    dense, sparse = clone(model).fit(X, y[:500]), clone(model).fit(container(X), y[:500])
    assert np.array_equal(dense.center_indices_, sparse.center_indices_)
    found, expected = outputs(sparse, container(X)), outputs(dense, X)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_columns_without_an_entry_change_nothing_and_take_no_time(selection, kernel, monkeypatch):
    columns = np.random.default_rng(0).choice(3000, 6, replace=False)
    wide = np.zeros((len(X), 3000))
    wide[:, columns] = X
    wide[:300, columns[:2]] = 0.0  # a column may be needed later
    sizes = []

    def spied(self, block, *args):
        sizes.append(block.shape[1])
        return decide(self, block, *args)

    decide = Pass._decide
    monkeypatch.setattr(Pass, "_decide", spied)
    model = ordered(radius=1.1, selection=selection, kernel=kernel, solver="ridge")
    dense, stream = clone(model).fit(wide, y), clone(model)
    sizes.clear()
    sparse = clone(model).fit(sp.csr_array(wide), y)
    assert set(sizes) <= {6, 7}  # the first column is always used
    for rows, container in (
        (slice(0, 300), sp.csr_array),
        (slice(300, 500), np.asarray),
        (slice(500, 700), sp.csr_array),
    ):
        stream.partial_fit(container(wide[rows]), y[rows], classes=[0, 1, 2])
    for found in (sparse, stream):
        assert np.array_equal(found.center_indices_, dense.center_indices_)
        assert np.array_equal(found.centers_, dense.centers_)
    scores = sparse.decision_function(sp.csr_array(wide))
    np.testing.assert_allclose(scores, dense.decision_function(wide), rtol=1e-6, atol=1e-7)
    nothing = clone(model).fit(sp.csr_array((20, 50)), y[:20])
    assert np.array_equal(nothing.centers_, clone(model).fit(np.zeros((20, 50)), y[:20]).centers_)


def test_samples_outside_every_radius_follow_the_rule_and_are_counted():
    X, y = BLOBS
    far = np.vstack([X[:5], X[5:8] + 1000, X[8:10] - 1000])
    model = FSVC(0.5, kernel="triangular", backend="numpy", random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match="5 of 10 samples lie outside"):
        scores = model.decision_function(far)
    with pytest.warns(UserWarning, match="nearest center"):
        assert np.array_equal(model.predict(far), model.classes_[scores.argmax(axis=1)])
    model.set_params(outside="zero")
    with pytest.warns(UserWarning, match="0 for every class"):
        assert not model.decision_function(far)[5:].any()


@pytest.mark.filterwarnings(OUTSIDE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_nearest_center_does_not_depend_on_other_samples(dtype, backend):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 2)).astype(dtype), rng.integers(0, 5, 300)
    far = (1e6 * rng.normal(size=(200, 2))).astype(dtype)
    model = ordered(radius=0.05, kernel="triangular", backend=backend).fit(X, y)
    farther = np.concatenate([far, np.full((1, 2), 1e18, dtype)])  # its square is too large
    found = model.decision_function(far)
    nearest = reference.euclidean(far, model.centers_).argmin(axis=1)
    np.testing.assert_array_equal(found, model.coef_.T[nearest])
    np.testing.assert_array_equal(model.decision_function(farther)[:-1], found)


@pytest.mark.filterwarnings(OUTSIDE)
@pytest.mark.parametrize("recipe", [FSVC.sfsvc(30.0), FSVC.published(8.0, kernel="gaussian")])
def test_published_recipes_do_not_depend_on_how_numbers_are_stored(recipe):
    # Activations of samples far from all centers are 0 in float32, and the first class follows.
    X, y = load_digits(return_X_y=True)
    scores = []
    for dtype in (np.uint8, np.float32, np.float64):
        model = clone(recipe).fit(X[:1000].astype(dtype), y[:1000])
        scores.append(model.decision_function(X[1000:].astype(dtype)))
    faint = (scores[2].sum(axis=1) > 0) & (scores[2].sum(axis=1) < np.finfo(np.float32).tiny)
    assert faint.sum() > 50
    np.testing.assert_array_equal(scores[0], scores[2])
    np.testing.assert_array_equal(scores[1], scores[2])


def test_max_centers_takes_the_first_ones_and_shares_them_among_classes():
    everything = ordered(radius=0.8).fit(X, y).center_indices_
    some = ordered(radius=0.8, max_centers=50).fit(X, y).center_indices_
    assert np.array_equal(some, everything[:50])
    shared = ordered(radius=0.8, max_centers=50, selection="per-class").fit(X, y)
    assert np.array_equal(np.bincount(y[shared.center_indices_]), [17, 17, 16])
    with pytest.raises(ValueError, match="max_centers=2 is less than the 3 classes"):
        shared.set_params(max_centers=2).fit(X, y)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("most", [None, 50, 2**70])
def test_the_pass_over_known_distances_is_the_pass(kernel, metric, selection, most):
    X, y = cloud(400)
    radius = {"euclidean": 1.0, "manhattan": 3.0, "sqeuclidean": 2.0}[metric]
    D = np.array([reference.fsvc_distance(X, x, metric) for x in X], np.float32)
    ones = np.ones(len(y))
    sample, unit = Sample(D, D, y, y, ones, ones, np.arange(len(y))), Unit(kernel, metric, radius)
    taken = select(sample, Rule(selection, 1.0, len(np.unique(y)), most), unit)
    model = ordered(radius=radius, kernel=kernel, metric=metric, selection=selection)
    model.set_params(max_centers=most).fit(X, y)
    assert np.array_equal(taken, np.sort(model.center_indices_))
    layer = KnownLayer(D, taken, unit)
    H = HiddenLayer(X[taken], unit.activation(), backend="numpy").activations(X)
    np.testing.assert_allclose(layer.activations(np.arange(400)), H, atol=2e-5)


def test_what_is_held_out_is_a_share_of_every_class_and_splits_no_equal_samples():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 300, 1000).astype(np.uint64)
    y = np.where(rng.random(1000) < 0.9, keys % 3, rng.integers(0, 3, 1000)).astype(int)
    weights = rng.integers(1, 4, 1000).astype(float)
    mask = held_out(keys, y, weights)
    for c in range(3):
        assert 0.15 < weights[mask & (y == c)].sum() / weights[y == c].sum() < 0.25
    assert not set(keys[mask]) & set(keys[~mask])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "model",
    [FSVC(0.1, eval_radius=None, selection="pass"), RBFClassifier(12, gamma=50, centers="random")],
    ids=["FSVC", "RBFClassifier"],
)
def test_a_sample_in_several_classes_is_of_its_heaviest(model, solver, weighted):
    """The class that came first or last decided."""
    A, own = np.arange(12.0)[:, None], np.arange(12) % 3
    pairs, b = np.repeat(A, 2, axis=0), (np.repeat(own, 2) + np.tile([0, 1], 12)) % 3
    w = np.tile([3, 2], 12)
    given = (pairs, b, w) if weighted else (np.repeat(pairs, w, axis=0), np.repeat(b, w))
    model = clone(model).set_params(solver=solver, backend="numpy", random_state=0).fit(*given)
    assert np.array_equal(model.predict(A), own)


@pytest.mark.parametrize("seed", [1, 3])
def test_the_search_holds_samples_out_of_all_their_classes(seed):
    """Their copies in the other classes were wrong answers about them."""
    rng = np.random.default_rng(seed)
    A = rng.integers(0, 2, (2000, 6)).astype(float)
    truth = (A - 0.5) @ rng.normal(size=6) > 0
    b = np.where(rng.random(2000) < 0.8, truth, ~truth)
    model = FSVC(backend="numpy", random_state=0).fit(A, b)
    assert model.score(A, truth) > 0.75


@pytest.mark.parametrize("rule", ["fsvc", "fsvc-class"])
@pytest.mark.parametrize("n_centers", [5, 50, 400])
def test_the_center_rules_give_as_many_centers_as_asked(rule, n_centers):
    layer = RBFLayer(n_centers, centers=rule, kernel="laplacian", backend="numpy", random_state=0)
    assert len(np.unique(layer.fit(X, y).center_indices_)) == n_centers


@pytest.mark.parametrize("rule", ["fsvc", "fsvc-class"])
def test_where_the_number_of_centers_jumps_others_are_added(rule):
    pairs = np.add.outer(np.arange(30.0), [0, 1e-6]).reshape(-1, 1)  # a center for each, or both
    layer = RBFLayer(44, centers=rule, backend="numpy", random_state=0).fit(pairs, np.zeros(60))
    assert len(np.unique(layer.center_indices_)) == 44
    assert len(np.unique(layer.center_indices_ // 2)) == 30


def test_the_path_can_be_drawn():
    pytest.importorskip("matplotlib").use("agg")
    X, y = BLOBS
    model = FSVC(backend="numpy", random_state=0).fit(X, y)
    assert model.plot_radius_path().get_ylabel() == "validation accuracy %"
    with pytest.raises(AttributeError, match="No radius was searched"):
        FSVC(1.0, eval_radius=None, backend="numpy").fit(X, y).plot_radius_path()


def test_targets_of_all_samples_are_never_in_memory_at_once():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100_000, 2)), np.arange(100_000) % 200
    tracemalloc.start()
    FSVC(0.5, eval_radius=None, max_centers=20, random_state=0).fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 100_000 * 200 / 2
