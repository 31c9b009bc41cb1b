"""FSVC's search for a radius on a sample that never sees test data."""

import time

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine, make_classification

from gpurbf import FSVC, config_context
from gpurbf.fsvc import search
from gpurbf.fsvc.search import Trial
from gpurbf.fsvc.selection import SELECTIONS
from gpurbf.runtime import threads
from tests import reference
from tests.estimators.test_fsvc import DIGITS, SOLVERS

X, y = DIGITS


def fitted(X, y, *radius, **options):
    return FSVC(*radius, backend="numpy", random_state=0, **options).fit(X, y)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_search_reports_what_it_tried_and_takes_the_best(solver):
    A, b = X[:700], y[:700]
    model = fitted(A, b, solver=solver, eval_radius="auto")
    path = model.radius_path_
    assert set(path) == set(Trial._fields)
    chosen = (path["radius"] == model.radius_) & (path["eval_radius"] == model.eval_radius_)
    assert path["score"][chosen] == path["score"].max()
    assert len(np.unique(path["radius"])) > 8
    assert model.score(A, b) > 0.9
    if solver == "lms":
        assert model.n_iter_ == path["n_iter"][chosen]


@pytest.mark.parametrize("factor", [0.1, 0.3, 10.0])
def test_the_scale_of_weights_decides_nothing(factor):
    w = np.random.default_rng(0).integers(1, 9, 178).astype(float)
    A, b = load_wine(return_X_y=True)
    for weights in (np.ones(178), w):
        one, other = (FSVC(random_state=0).fit(A, b, k * weights) for k in (1, factor))
        np.testing.assert_array_equal(one.centers_, other.centers_)
        found = other.decision_function(A)
        np.testing.assert_allclose(one.decision_function(A), found, rtol=0, atol=1e-6)


def test_the_distance_of_a_sample_to_itself_is_none_whatever_its_rounding():
    D = np.abs(np.subtract.outer(X[:5, 3:].sum(axis=1), X[:5, 3:].sum(axis=1)))
    expected = search.typical_distance(D)
    np.fill_diagonal(D, 1e-4)
    assert search.typical_distance(D) == expected == np.median(D[~np.eye(5, dtype=bool)])


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_trials_have_the_same_bits_for_every_number_of_threads(backend):
    A = X[:400] * np.sqrt(2)  # sums of squares are rounded
    model = FSVC(solver="ridge", backend=backend, random_state=0)
    one, several = (clone(model).set_params(n_jobs=n).fit(A, y[:400]).radius_path_ for n in (1, -1))
    np.testing.assert_equal(one, several)


@pytest.mark.parametrize(("memory", "together"), [(0.2, 1), (64, 4)])
def test_as_many_trials_as_threads_run_together_if_memory_holds_them(memory, together, monkeypatch):
    running, seen = [], []

    def iterates(*args, solve=search.iterates):
        running.append(None)
        time.sleep(0.02)  # for other threads to begin theirs
        seen.append(len(running))
        found = solve(*args)
        running.pop()
        return found

    monkeypatch.setattr(threads, "_cores", lambda: 4)
    monkeypatch.setattr(search, "iterates", iterates)
    with config_context(memory=memory):
        fitted(X[:300], y[:300])
    assert together / 2 <= max(seen) <= together


@pytest.mark.parametrize("seed", [9, 17])
def test_of_equally_accurate_radii_that_of_least_loss_is_taken(seed):
    """Accuracies were sums of 1 / n, which rounding told apart."""
    N = int(np.random.default_rng(seed).integers(100, 600))
    X, y = make_classification(N, 8, n_informative=4, flip_y=0.1, random_state=seed)
    model = fitted(X, y)
    path, score = model.radius_path_, np.unique(model.radius_path_["score"])
    assert np.diff(score).min() > 1e-6
    equal = np.flatnonzero(path["score"] == score[-1])
    assert model.radius_ == path["radius"][equal[path["loss"][equal].argmin()]]


def test_of_radii_of_equal_loss_rounding_of_weights_takes_none():
    """A sample or two are held out: the loss is 0 with any radius that tells classes apart."""
    rng = np.random.default_rng(1)
    N = int(rng.integers(4, 13))
    A, b = np.repeat(rng.normal(size=(N, 2)), 3, axis=0), np.repeat(np.arange(N) % 2, 3)
    weights = np.outer(rng.random(N) + 0.1, [1, 0.3, 0.7]).ravel()
    found = set()
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(3 * N)
        model = FSVC(random_state=0).fit(A[order], b[order], weights[order])
        found.add((model.radius_, model.eval_radius_))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("radius", "seed"), [("auto", 6), ("auto", 31), ("auto", 44), ("ratio", 0), ("ratio", 1)]
)
def test_every_class_of_data_that_any_radius_separates_gets_a_center(radius, seed):
    """Of equal radii the largest was taken, and 2 % of few samples are fewer than classes."""
    rng = np.random.default_rng(seed)
    b = np.concatenate([np.arange(7), np.arange(7), rng.choice(7, 60)])
    A = 100 * rng.normal(size=(7, 3))[b] + rng.normal(size=(len(b), 3))
    model = fitted(A, b, radius)
    assert set(b[model.center_indices_]) == set(b)
    assert model.score(A, b) == 1


@pytest.mark.parametrize(("far", "few"), [(20.0, 3), (600.0, 3), (600.0, 1), (1e4, 3)])
def test_a_few_samples_far_away_do_not_end_the_search(far, few):
    """They are centers with all radii below their distance; a radius beyond it is to be found."""
    radius = search.find_radius(lambda r: 11 if r < far else few if r > 1.1 * far else 4, 2, 5, 1.0)
    assert radius >= far
    assert search.find_radius(lambda r: 11, 2, 5, 1.0) == 1.0


@pytest.mark.parametrize("radius", ["auto", "ratio"])
@pytest.mark.parametrize("size", [1e-80, 1e-100])  # squares of squared distances underflow
def test_radii_whose_squares_vanish_are_refused_as_given_ones_are(radius, size):
    with pytest.raises(ValueError, match=r"squares of radii cannot be computed.*Scale the data"):
        fitted(size * X[:100], y[:100], radius, metric="sqeuclidean")


@pytest.mark.parametrize("radius", ["auto", "ratio", 1e200])
def test_squares_of_squared_distances_that_overflow_are_an_error_and_no_warning(radius):
    with pytest.raises(ValueError, match=r"cannot be computed.*Scale the data"):
        fitted(1e100 * X[:100], y[:100], radius, metric="sqeuclidean")


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_samples_far_away_do_not_decide_the_search_by_their_rounding(metric):
    A = X[:600].astype(float)
    A[:6, 0] = 1e7
    path = fitted(A, y[:600], metric=metric).radius_path_
    exact = fitted(A, y[:600], metric=metric, precision="float64").radius_path_
    assert path["score"].max() == exact["score"].max() > 0.9
    narrow = fitted(A.astype(np.float32), y[:600], metric=metric)
    assert narrow.radius_path_["score"].max() < narrow.score(A, y[:600]) + 0.1  # as bad as it is


@pytest.mark.parametrize("halves_apart", [False, True])
def test_manhattan_distances_of_samples_far_from_zero_are_no_rounding(halves_apart):
    sign = np.where(np.arange(600) % 2, 1, -1)[:, None] if halves_apart else 1
    A = X[:600] / 7 + 1e8 * sign
    path = fitted(A, y[:600], metric="manhattan").radius_path_
    exact = fitted(A, y[:600], metric="manhattan", precision="float64").radius_path_
    assert path["score"].max() == exact["score"].max() > 0.9


def test_a_first_chunk_of_a_class_without_weight_is_searched_as_any_other():
    model = FSVC(class_weight={0: 0.0, 1: 1.0}, random_state=0)
    with pytest.warns(UserWarning, match="first batch has samples of 1 of 2 classes"):
        model.partial_fit(X[y == 0], y[y == 0], classes=[0, 1])
    assert (model.radius_path_["score"] == 1).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-14, 1e12])
def test_the_search_holds_squares_of_squared_distances(size, dtype):
    A = (size * X[:200]).astype(dtype)
    assert fitted(A, y[:200], metric="sqeuclidean").score(A, y[:200]) > 0.9


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("radius", [1e-30, 1e-18, 1e30])
def test_a_radius_is_given_whose_square_float32_does_not_hold(radius):
    assert np.isfinite(fitted(X[:200], y[:200], radius).radius_path_["loss"]).all()


def test_a_given_radius_leaves_only_the_evaluation_radius_to_search():
    model = fitted(X[:500], y[:500], 2.0, eval_radius="auto")
    assert set(model.radius_path_["radius"]) == {2.0}
    assert model.radius_ == 2.0 and model.eval_radius_ > 0
    same = fitted(X[:500], y[:500], 2.0, eval_radius=2.0)
    assert not hasattr(same, "radius_path_")


def test_the_search_keeps_to_the_most_centers_allowed():
    model = fitted(X, y, max_centers=60)
    assert len(model.centers_) <= 60
    assert (model.radius_path_["expected_centers"] <= 1.1 * 60).all()


@pytest.mark.parametrize("memory", [1, 1e-6])
def test_the_search_works_where_the_sample_is_a_part_of_the_data(memory):
    with config_context(memory=memory):
        model = fitted(X, y, max_centers=200)
    chosen = model.radius_path_["radius"] == model.radius_
    assert model.radius_path_["n_centers"][chosen].max() < len(model.centers_) <= 200


@pytest.mark.parametrize("selection", SELECTIONS)
def test_ratio_makes_1_to_10_percent_of_the_samples_centers(selection):
    model = fitted(X, y, "ratio", selection=selection)
    assert 0.01 * len(X) <= len(model.centers_) <= 0.1 * len(X)


@pytest.mark.parametrize("radius", ["auto", "ratio"])
@pytest.mark.parametrize(
    ("selection", "overlap"), [("per-class", 1.0), ("pass", 20.0), ("error", 5.0)]
)
def test_no_units_are_so_wide_that_activations_round_to_one(radius, selection, overlap):
    """Fewer centers than a pass takes with any radius were looked for: radii went up to 1e19."""
    A, b = load_iris(return_X_y=True)
    A, b = (X[:60], y[:60]) if radius == "ratio" else (A[::2], b[::2])
    model = fitted(A, b, radius, selection=selection, overlap=overlap)
    assert model.radius_ < 1000 and model.radius_path_["radius"].max() < 1000


@pytest.mark.parametrize(("n_classes", "overlap"), [(20, 1.0), (9, 3.5), (13, 2.0)])
def test_no_search_takes_wide_units_for_too_many_centers(n_classes, overlap):
    A, b = load_iris().data[:60], np.arange(60) % n_classes
    path = fitted(A, b, "auto", selection="per-class", overlap=overlap).radius_path_
    assert path["radius"].max() < 1000


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.filterwarnings("ignore:The first batch:UserWarning")
def test_classes_that_a_first_chunk_lacks_allow_ratio_no_more_centers(selection):
    few = y[:700] < 2
    A, b = X[:700][few], y[:700][few]
    model = FSVC("ratio", eval_radius=None, selection=selection)
    model.partial_fit(A, b, classes=range(500))
    assert len(model.centers_) <= 0.05 * len(A)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_ratio_ends_at_the_most_centers_allowed(selection):
    model = fitted(X[:700], y[:700], "ratio", selection=selection, max_centers=10)
    distance = search.typical_distance(reference.euclidean(X[:200], X[:200]))
    assert len(model.centers_) == 10 and model.radius_ > distance / 4


def test_the_defaults_are_error_aware_with_both_radii_and_the_recipes_as_published():
    model = fitted(X[:900], y[:900])
    same = fitted(X[:900], y[:900], selection="error", eval_radius="auto")
    assert np.array_equal(model.coef_, same.coef_)
    assert model.eval_radius_ > model.radius_
    before = fitted(X[:900], y[:900], selection="pass", eval_radius=None)
    assert model.score(X[900:], y[900:]) > before.score(X[900:], y[900:])
    for recipe, selection in ((FSVC.published, "pass"), (FSVC.sfsvc, "per-class")):
        assert recipe(2.0).selection == selection and recipe(2.0).eval_radius is None
        assert recipe(2.0).outside == "zero" and not recipe(2.0).shuffle
    assert FSVC.published(2.0, eval_radius=3.0).eval_radius == 3.0


@pytest.mark.parametrize("X", [[[0.0], [1.0]], [[1.0, 2.0], [1.0, 5.0]], [[3e9], [4e9]]])
def test_two_samples_are_told_apart_by_the_defaults(X):
    assert FSVC(backend="numpy").fit(X, ["a", "b"]).predict(X).tolist() == ["a", "b"]
