"""Sizes and numbers at the ends of what there is: a right answer, or an error that helps."""

import tempfile

import numpy as np
from callers import outputs
from hypothesis import strategies as st
from sklearn.base import clone

from gpurbf import FSVC, SVC, RBFClassifier
from tests.campaign.cases import AROUND, MODELS, NAMES, SEEDS, Table, refused, storages
from tests.campaign.rounds import campaign

# What data are multiplied by, and what is added: nothing is left of some of it.
SCALES = [1.0, 1e300, 1e-300, 5e-324, 1e308, 1e155, 1e-155, 1e38, 1e-38, 1e-45, 0.0]


def answered_or_refused(model, X, y):
    """Finite outputs, or the error that names a cure; never NumPy's, never NaN."""
    try:
        model.fit(X, y)
        found = outputs(model, X)
    except ValueError as error:
        assert refused(error), error
        return
    assert np.isfinite(found).all()
    for name, value in vars(model).items():
        if name.endswith("_") and isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert np.isfinite(value).all(), name


@campaign(
    "extremes",
    40,
    seed=SEEDS,
    name=NAMES,
    scale=st.sampled_from(SCALES),
    offset=st.sampled_from([0.0, 1.0, 1e300, -1e16]),
    storage=storages(dtypes=("float64", "float32"), orders=("C", "sparse")),
    some=st.booleans(),
)
def test_data_of_any_magnitude_are_answered_or_refused(seed, name, scale, offset, storage, some):
    X, y = Table(seed, "real", 40, 3, 2).make()
    with np.errstate(all="ignore"):
        X[: 20 if some else None] *= scale
        X += offset
        X = storage.of(np.clip(X, *(s * float(np.finfo(storage.dtype).max) for s in (-1, 1))))
        answered_or_refused(clone(MODELS[name]), X, y)


@campaign(
    "extremes",
    30,
    seed=SEEDS,
    name=NAMES,
    values=st.sampled_from(["real", "pixels", "constant columns", "few distinct"]),
    N=st.integers(2, 6),
    n=st.integers(1, 2),
    storage=storages(),
    around=AROUND,
)
def test_very_few_samples_are_answered_or_refused(seed, name, values, N, n, storage, around):
    X, y = Table(seed, values, N, n, 2).make()
    with around():
        model = clone(MODELS[name]).set_params(backend=around.backend)
        answered_or_refused(model, storage.of(X), y)


def of_classes(k, seed):
    """A center for each of k classes, and three samples beside each."""
    rng = np.random.default_rng(seed)
    centers = rng.integers(0, 256, (k, 12))
    X = np.clip(np.repeat(centers, 3, axis=0) + rng.integers(-3, 4, (3 * k, 12)), 0, 255)
    return centers.astype(float), X, np.repeat(rng.permutation(k), 3)


@campaign("extremes", 1, seed=SEEDS)
def test_a_thousand_classes_are_told_apart(seed):
    centers, X, y = of_classes(1000, seed)
    votes = {"eval_radius": None, "solver": "one-hot", "random_state": 0}
    rbf = RBFClassifier(centers=centers, gamma=1e-3, alpha=1e-6)
    for model in (rbf, FSVC(40.0, selection="per-class", **votes)):
        assert model.fit(X, y).score(X, y) > 0.99


@campaign("extremes, hours only", 1, seed=SEEDS)
def test_a_hundred_classes_are_five_thousand_pairs(seed):
    _, X, y = of_classes(100, seed)
    assert SVC(gamma=1e-3, C=10).fit(X, y).score(X, y) > 0.99


@campaign("extremes", 1, seed=SEEDS)
def test_more_activations_than_32_bits_count(seed):
    """N m > 2³¹, none of which is kept: the last row is the row alone."""
    rng = np.random.default_rng(seed)
    C, y = rng.integers(0, 256, (2049, 1)).astype(np.uint8), np.arange(2049) % 2
    model = RBFClassifier(centers=C, gamma=1e-3, alpha=1e-3).fit(C, y)
    X = rng.integers(0, 256, ((1 << 20) + 7, 1)).astype(np.uint8)
    assert len(X) * len(C) > 1 << 31
    some = np.r_[0:3, -9:0]
    np.testing.assert_array_equal(model.predict(X)[some], model.predict(X[some]))


@campaign("extremes, hours only", 1, seed=SEEDS)
def test_more_elements_than_32_bits_count_in_a_file(seed):
    n = 70_000
    N = (1 << 31) // n + 9
    C = np.random.default_rng(seed).integers(0, 3, (6, n)).astype(np.uint8)
    model = RBFClassifier(centers=C, gamma=1e-5, alpha=1e-3).fit(C, [0, 1] * 3)
    with tempfile.TemporaryFile() as file:
        file.truncate(N * n)  # a file of holes: zeros that take no room
        X = np.memmap(file, np.uint8, "r+", shape=(N, n))
        X[[5, N - 1]] = C[[1, 4]]
        expected = np.full(N, model.predict(0 * C[:1])[0])
        expected[[5, N - 1]] = 1, 0
        np.testing.assert_array_equal(model.predict(X), expected)
