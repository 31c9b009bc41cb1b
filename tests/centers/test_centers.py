"""Center rules: the draw depends on content alone, classes get their share, means are k-means'."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_digits
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from gpurbf import RBFLayer
from gpurbf.centers import CENTERS
from gpurbf.centers.sample import Distinct, Race, shares
from gpurbf.data.hashes import row_hashes
from gpurbf.layer.activation import Activation
from gpurbf.runtime.threads import limited, thread_limit

X, y = load_digits(return_X_y=True)
X, y = X[:600], y[:600]


def draw(rule, X, y, n_centers, weights=None, seed=0):
    return CENTERS[rule](X, y, n_centers, weights=weights, random_state=np.random.RandomState(seed))


@pytest.mark.parametrize("rule", ["random", "stratified"])
def test_a_draw_ignores_order_and_storage_and_a_weight_is_a_number_of_copies(rule):
    chosen = X[draw(rule, X, y, 50)]
    assert len(np.unique(chosen, axis=0)) == 50
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(X[draw(rule, X, y, 50, np.full(len(X), 2.0))], chosen)
    weights = rng.integers(1, 4, len(X))
    rows = rng.permutation(np.repeat(np.arange(len(X)), weights))
    by_weight = X[draw(rule, X, y, 50, weights.astype(float))]
    np.testing.assert_array_equal(X[rows][draw(rule, X[rows], y[rows], 50)], by_weight)
    codes, mirrored = X.astype(np.uint8), X[:, ::-1].copy()[:, ::-1]
    for same in (codes, X.astype(np.float32), sp.csr_array(X), np.asfortranarray(codes), mirrored):
        np.testing.assert_array_equal(X[draw(rule, same, y, 50)], chosen)


def test_seeds_differ_and_repeat():
    first = draw("random", X, y, 50)
    np.testing.assert_array_equal(first, draw("random", X, y, 50))
    assert len(np.intersect1d(first, draw("random", X, y, 50, seed=1))) < 25


def test_the_chance_of_a_row_grows_with_its_weight():
    weights = np.where(np.arange(len(X)) < 300, 9.0, 1.0)
    heavy = np.mean([(draw("random", X, y, 20, weights, seed) < 300).mean() for seed in range(60)])
    assert 0.84 < heavy < 0.95  # 0.9, less a little for drawing without replacement


def test_every_class_gets_its_share():
    counts = np.bincount(y[draw("stratified", X, y, 100)])
    assert np.abs(counts - 100 * np.bincount(y) / len(y)).max() <= 1
    rare = np.where(np.arange(len(y)) == 5, 10, 0)
    assert (rare[draw("stratified", X, rare, 7)] == 10).sum() == 1


@pytest.mark.parametrize("rule", ["stratified", "kmeans-class"])
def test_with_fewer_centers_than_classes_no_class_is_preferred(rule):
    """A continuous target, of which every value is a class, does not choose centers by its size."""
    A = np.random.default_rng(0).random((2000, 1))
    classes = np.argsort(np.argsort(A[:, 0]))
    found = draw(rule, A, classes, 40)
    centers = A[found] if found.ndim == 1 else found
    assert len(centers) == 40
    assert 0.3 < centers.mean() < 0.7 and centers.min() < 0.2 and centers.max() > 0.8


def test_shares_add_up_and_respect_what_there_is():
    rng = np.random.default_rng(0)
    for total in range(1, 60):  # the largest class may be all, and there may be fewer than asked
        mass, available = rng.pareto(0.5, 4), rng.integers(1, 12, 4)
        quotas = shares(mass, available, total)
        assert quotas.sum() == min(total, sum(available))
        assert (quotas <= available).all() and (quotas >= 0).all()


def raced(race, parts, X, y, weights):
    """What a race finds in each of some parts of the rows."""
    return [race(X[p], None if y is None else y[p], weights[p], p[0]) for p in parts]


@pytest.mark.parametrize("by_class", [True, False])
@pytest.mark.parametrize("n_parts", [1, 2, 9, 30])
def test_parts_merge_to_the_distinct_rows_of_all(by_class, n_parts):
    rng = np.random.default_rng(0)
    A, b = rng.integers(0, 3, (300, 4)).astype(float), rng.integers(0, 2, 300)
    weights, race = rng.random(300), Race(7, by_class)
    codes = b if by_class else None
    whole = race.over(A, b, weights)
    parts = raced(race, np.array_split(np.arange(300), n_parts), A, codes, weights)
    for order in (parts, parts[::-1]):
        merged = Distinct.merged(*order)
        np.testing.assert_equal(merged[:-1], whole[:-1])
        np.testing.assert_allclose(merged.mass, whole.mass)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_first_few_rows_are_the_same_however_all_of_them_come(sparse, repeated):
    """Also where most rows are repeated, and rows of no weight are never among them."""
    rng = np.random.default_rng(0)
    A, weights = rng.integers(0, 3, (3000, 200)).astype(float), rng.integers(0, 2, 3000) * 1.0
    A[:, ::4] = A[0, ::4]  # the inputs that are hashed first tell nothing
    if repeated:
        A = A[rng.integers(0, 90, 3000)]
    race, stored = Race(7, False, wanted=40), sp.csr_array(A) if sparse else A
    whole = race(A, None, weights, 0)
    assert len(np.unique(A[whole.first], axis=0)) == 40 and whole.totals.all()
    for n_parts in (1, 3, 11):
        parts = np.array_split(rng.permutation(3000), n_parts)
        merged = race.merged(*raced(race, parts, stored, None, weights))
        np.testing.assert_array_equal(merged.hashes, whole.hashes)
        np.testing.assert_array_equal(merged.totals, whole.totals)


def test_rows_that_agree_in_the_inputs_hashed_first_are_not_copied():
    A = sp.random_array((20_000, 20_000), density=0.005, format="csr", rng=0)
    race = Race(7, by_class=False, wanted=40)
    race.over(A[:9], None, None)  # imports
    tracemalloc.start()
    race.over(A, None, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * (A.data.nbytes + A.indices.nbytes)


def test_the_first_few_rows_have_all_of_their_classes():
    rng = np.random.default_rng(0)
    A, b = rng.integers(0, 2, (3000, 7)).astype(float), rng.integers(0, 5, 3000)
    every, numbers = Race(7, by_class=True).over(A, b, None), A @ 2 ** np.arange(7)
    for most in range(5, 60):
        found = Race(7, by_class=True, wanted=most)(A, b, None, 0)
        assert most <= len(found.first) <= most + 4
        assert np.isin(numbers[every.first], numbers[found.first]).sum() == len(found.first)


def test_the_first_few_rows_have_all_of_their_classes_however_they_come():
    rng = np.random.default_rng(0)
    A, b = rng.integers(0, 2, (60, 3)).astype(float), rng.integers(0, 4, 60)
    for seed in range(100):  # a part may lack some of the last one's classes
        race = Race(seed, by_class=True, wanted=5)
        parts = raced(race, np.array_split(np.arange(60), 2), A, b, np.ones(60))
        np.testing.assert_equal(race.merged(*parts)[:-1], race(A, b, None, 0)[:-1])


def test_hashes_separate_rows_and_equate_zeros():
    assert len(np.unique(row_hashes(np.eye(2000), 0))) == 2000
    positive, negative = (row_hashes(np.array([[zero, 1]]), 1) for zero in (0.0, -0.0))
    np.testing.assert_array_equal(positive, negative)


@pytest.mark.parametrize("n_jobs", [1, None])
def test_n_jobs_limits_the_threads_of_k_means_and_of_nothing_else(monkeypatch, n_jobs):
    before, seen, fit = _openmp_effective_n_threads(), [], MiniBatchKMeans.fit

    def spied(self, *args, **options):
        seen.append(_openmp_effective_n_threads())
        return fit(self, *args, **options)

    monkeypatch.setattr(MiniBatchKMeans, "fit", spied)
    with limited(n_jobs):
        draw("kmeans", X, None, 10)
        assert seen == [min(before, thread_limit())]
    assert _openmp_effective_n_threads() == before


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("rule", ["kmeans", "kmeans-class"])
def test_means_of_sparse_samples_do_not_depend_on_how_their_entries_are_stored(rule, index):
    tidy = sp.csr_array(X[:200])
    twice = np.repeat(tidy.data / 2, 2), np.repeat(tidy.indices, 2).astype(index)
    stored = sp.csr_array((*twice, (2 * tidy.indptr).astype(index)), shape=tidy.shape)
    with limited(1):  # a thread's share is less work than its start
        found, expected = (draw(rule, samples, y[:200], 20) for samples in (stored, tidy))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rule", ["kmeans", "kmeans-class"])
def test_means_lie_among_the_samples(rule):
    C = draw(rule, X, y, 30)
    assert C.shape == (30, 64)
    assert (X.min(axis=0) <= C + 1e-9).all() and (X.max(axis=0) >= C - 1e-9).all()
    with pytest.raises(ValueError, match="n_centers=601"):
        draw(rule, X, y, 601)


@pytest.mark.parametrize(("size", "origin"), [(1 / 16, 1e4), (1e-30, 0.0), (1e30, 0.0)])
def test_means_of_float32_samples_are_those_of_the_same_numbers_in_float64(size, origin):
    samples = (size * X + origin).astype(np.float32)
    with limited(1):
        found, expected = (draw("kmeans", A, y, 20) for A in (samples, samples.astype(np.float64)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rule", ["fsvc", "fsvc-class"])
def test_passes_take_no_memory_for_columns_without_an_entry(rule):
    narrow = sp.csr_array(X[:200] * np.pi)
    wide = sp.csr_array((narrow.data, narrow.indices, narrow.indptr), shape=(200, 100_000))
    options = {"activation": Activation("euclidean", "gaussian", 0.001)}
    options |= {"weights": None, "backend": "numpy", "precision": "auto"}
    tracemalloc.start()
    found = CENTERS[rule](wide, y[:200], 20, random_state=np.random.RandomState(0), **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 20 and peak < 100e6  # 320e6 with all columns


@pytest.mark.parametrize("n_centers", [10, 12, 15])
@pytest.mark.parametrize("seed", range(3))
def test_a_pass_for_each_class_gives_each_a_center(n_centers, seed):
    """Passes of wide units take two centers each: the first of all left out up to four classes."""
    model = RBFLayer(n_centers, centers="fsvc-class", random_state=seed).fit(X, y)
    assert len(np.unique(y[model.center_indices_])) == 10


def test_a_weight_is_a_number_of_copies_in_passes_too():
    """Of samples in several classes: the number of copies chose the class, weights did not."""
    options = {"activation": Activation("euclidean", "gaussian", 1.0)}
    options |= {"backend": "numpy", "precision": "auto"}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A, b, w = rng.integers(0, 3, (40, 2)) * 1.0, rng.integers(0, 3, 40), rng.integers(1, 6, 40)
        copies, found = np.repeat(np.arange(40), w), []
        for rows, weights in ((np.arange(40), 1.0 * w), (copies, None)):
            state = np.random.RandomState(0)
            given = A[rows], b[rows], 9
            some = rows[
                CENTERS["fsvc-class"](*given, weights=weights, random_state=state, **options)
            ]
            found.append(sorted(zip(*A[some].T, b[some], strict=True)))
        assert found[0] == found[1]


def test_rules_by_class_ask_for_labels_or_do_without():
    with pytest.raises(ValueError, match="pass y"):
        draw("kmeans-class", X, None, 10)
    assert np.array_equal(draw("stratified", X, None, 10), draw("random", X, None, 10))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_integer_points_of_a_rule_change_no_precision(monkeypatch, dtype):
    A = X[:60, 20:23] if dtype is np.uint8 else 1e3 * np.sqrt(2) * X[:60, 20:23]
    A, points, found = A.astype(dtype), A[:9].astype(np.int64), []
    for C in (points, points.astype(dtype)):
        monkeypatch.setitem(CENTERS, "mine", lambda X, y, n_centers, C=C, **context: C)
        found.append(RBFLayer(9, centers="mine", backend="numpy").fit_transform(A))
    np.testing.assert_array_equal(*found, strict=True)


@pytest.mark.parametrize(
    "made", [[0, 1], np.empty(0, int), np.array([-1, 2]), np.array([0, 60]), np.arange(60) < 9,
             np.ones((3, 7)), np.full((3, 3), np.nan)],
    ids=["a list", "none", "negative", "beyond", "a mask", "too wide", "nan"],
)  # fmt: skip
def test_a_rule_that_gives_neither_rows_nor_points_is_named(monkeypatch, made):
    monkeypatch.setitem(CENTERS, "mine", lambda X, y, n_centers, **context: made)
    with pytest.raises(ValueError, match=r"centers='mine' must return.* points of 3 features"):
        RBFLayer(4, centers="mine").fit(X[:60, 20:23])
