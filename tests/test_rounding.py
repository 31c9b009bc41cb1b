"""What is said of float32 kernel values against float64 ones."""

import numpy as np
import pytest
import reference

from gpurbf.backends import Activation
from gpurbf.network.hidden import HiddenLayer
from gpurbf.network.kernel_rows import KernelRows
from gpurbf.network.rounding import float32_rounding
from gpurbf.network.samples import look

rng = np.random.default_rng(0)
DATA = {
    "normal": rng.normal(size=(400, 20)),
    "far": rng.normal(size=(400, 20)) + 1000,
    "heavy tails": rng.standard_t(3, size=(400, 60)),
    "wide": rng.normal(size=(400, 500)),
    "clusters": rng.normal(size=(400, 10)) + 100 * rng.integers(0, 3, size=(400, 1)),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_float32_values_are_as_wrong_as_is_said(name, metric, scale):
    X = DATA[name]
    spread = X.var() * X.shape[1] if metric == "euclidean" else X.std() * X.shape[1]
    profile = "gaussian" if metric == "euclidean" else "laplacian"
    activation = Activation(metric, profile, scale / spread)
    layer = HiddenLayer(X, activation, precision="float32", backend="numba")
    K = reference.hidden(X, X, metric, profile, activation.gamma)
    error = float(np.sqrt(np.mean((layer.outputs(X) - K) ** 2)))
    said = float32_rounding(X, activation)
    assert error <= said
    # Where samples are so far from each other that K is 0, nothing is wrong with it.
    assert said <= 100 * error or scale > 1


@pytest.mark.parametrize(
    "n_samples, offset, precision, dtype, looked_after",
    [
        (5000, 0, "auto", "float32", True),
        (5000, 0, "float32", "float32", False),
        (5000, 0, "float64", "float64", False),
        (3000, 0, "auto", "float64", False),
    ],
)
def test_rows_take_the_narrowest_arithmetic_that_serves(
    n_samples, offset, precision, dtype, looked_after
):
    X = np.random.default_rng(1).normal(size=(n_samples, 5)) + offset
    activation = Activation("euclidean", "gaussian", 0.2)
    rows = KernelRows(look(X, precision), activation, "auto", precision)
    assert rows.dtype == dtype
    assert (rows.rounding > 0) == looked_after
    assert dtype in rows.description


def test_rows_are_float64_where_the_data_spread_too_far():
    X = np.random.default_rng(1).normal(size=(5000, 5)) * [1, 1, 1, 1, 1e4]
    rows = KernelRows(look(X), Activation("euclidean", "gaussian", 0.2), "auto", "auto")
    assert rows.dtype == np.float64


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("codes", [True, False])
def test_weighted_values_are_their_sums(wide, codes, backend):
    rng = np.random.default_rng(2)
    X = rng.integers(0, 255, (300, 12)).astype(np.uint8) if codes else rng.normal(size=(300, 12))
    activation = Activation("euclidean", "gaussian", 1e-5 if codes else 0.1)
    rows = KernelRows(look(X), activation, backend, "auto")
    some, weights = rng.permutation(300)[:70], rng.normal(size=70)
    expected = reference.hidden(X, X[some], *activation[:3]) @ weights
    found = rows.weighted(rows.gathered(np.arange(100, 300)), some, weights, wide)
    narrow = not wide and rows.dtype == np.float32
    assert found == pytest.approx(expected[100:], abs=1e-4 if narrow else 1e-9)
