"""FSVC's published figures, and golden values of the recipe, to the digit on every backend."""

import numpy as np
import pytest

from gpurbf import FSVC
from tests.estimators.test_fsvc import DIGITS

pytestmark = pytest.mark.filterwarnings("ignore:.*outside the radius of every center:UserWarning")

NAMES = "overlap", "radius", "kernel", "metric"
# These; centers, sum of indices, correct of 797 without and with LMS
GOLDEN = [
    (1, 7.6, "triangular", "manhattan", 329, 128962, 759, 761),
    (0.25, 1, "gaussian", "euclidean", 679, 306613, 772, 772),
    (4, 1.35, "gaussian", "euclidean", 935, 451208, 763, 771),
    (1, 3, "triangular", "euclidean", 14, 2209, 478, 603),
]
# data; these; centers, test accuracy in %
OPTD64, IRIS = ("optdigits", "optd64.npz"), ("fsvc-iris", "iris.npz")
PUBLISHED = [
    (OPTD64, (0.25, 1, "gaussian", "euclidean", 1720, 98.664)),
    (OPTD64, (1, 7.6, "triangular", "manhattan", 595, 97.663)),
    (IRIS, (1, 0.6, "triangular", "manhattan", 15, 100)),
    (IRIS, (0.1, 0.5, "triangular", "manhattan", 7, 100)),
]


@pytest.mark.parametrize("precision", ["auto", "exact", "float64"])
@pytest.mark.parametrize("row", GOLDEN, ids=str)
def test_golden_values_on_digits(row, precision, backend):
    (X, y), (*unit, m, places, votes, trained) = DIGITS, row
    options = dict(zip(NAMES, unit), backend=backend, precision=precision)
    for lms, correct in (({}, votes), ({"learning_rate": 1 / 16, "n_epochs": 8}, trained)):
        recipe = FSVC.published(**options, **lms).fit(X[:1000], y[:1000])
        assert len(recipe.centers_) == m
        assert recipe.center_indices_.sum() == places
        assert np.sum(recipe.predict(X[1000:]) == y[1000:]) == correct


@pytest.mark.parametrize(("published", "row"), PUBLISHED, indirect=["published"], ids=str)
def test_published_results(published, row, backend):
    *unit, m, accuracy = row
    recipe = FSVC.published(**dict(zip(NAMES, unit)), backend=backend)
    recipe.fit(published["X_train"], published["y_train"])
    assert len(recipe.centers_) == m
    assert round(100 * recipe.score(published["X_test"], published["y_test"]), 3) == accuracy
