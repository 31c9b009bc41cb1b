"""float32 is taken for sums of kernel values where its error is stated, and below the tolerance."""

import numpy as np
import pytest
from sklearn.datasets import make_classification

from gpurbf import SVC
from gpurbf.backends import get_backend
from gpurbf.network.hidden import Activation, HiddenLayer
from gpurbf.network.rounding import arithmetic, float32_error
from gpurbf.network.samples import look


def table(n=30, spread=1.0, offset=0.0):
    X, y = make_classification(1500, n, n_informative=n // 2, random_state=0)
    scales = 1 + np.random.default_rng(0).pareto(2, (len(X), 1)) * (spread > 1)
    return X * scales + offset, y


@pytest.mark.parametrize("spread", [1.0, 20.0])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("kernel", [("euclidean", "gaussian"), ("dot", "linear")])
def test_sums_err_by_no_more_than_is_said(backend, spread, offset, kernel):
    X, _ = table(spread=spread, offset=offset)
    activation = Activation(*kernel, 1 / 30)
    samples, rng = look(X), np.random.default_rng(1)
    between, itself = float32_error(samples, activation, get_backend(backend))
    # As a solver's coefficients, they add up to 0.
    W = np.array([rng.permutation(np.repeat([1.0, -1.0, 0.0], [400, 400, 700])) for _ in range(20)])
    single, double = (
        HiddenLayer(samples, activation, backend=backend, dtype=dtype)
        .outputs(samples)
        .astype(np.float64)
        for dtype in (np.float32, np.float64)
    )
    error = np.abs(single @ W.T - double @ W.T)
    assert 0 < error.max() < 6 * between * np.sqrt(800) + itself
    assert error.std() < 3 * between * np.sqrt(800) + itself


def test_the_tolerance_and_the_coefficients_decide():
    X, _ = table()
    samples, chosen = look(X), get_backend("numba")
    activation = Activation("euclidean", "gaussian", 1 / 30)

    def dtype(size, largest, tol, part=slice(None)):
        found, said = arithmetic(
            samples[part], activation, chosen, size=size, largest=largest, tol=tol
        )
        assert said
        return found

    assert dtype(30, 1, 1e-3) is np.float32
    assert dtype(30, 1, 1e-7) is np.float64
    assert dtype(3e5, 1e4, 1e-3) is np.float64
    assert dtype(np.inf, np.inf, 1e-3) is np.float64
    assert dtype(30, 1, 1e-3, slice(0, 900)) is np.float64


def test_svc_says_which_arithmetic_and_why_and_can_be_forced():
    X, y = table()
    wide = SVC(tol=1e-9).fit(X, y)
    assert "float64" in wide.backend_info_ and "tol=1e-09" in wide.backend_info_
    model = SVC().fit(X, y)
    assert ", float32" in model.backend_info_ and "little for tol=0.001" in model.backend_info_
    assert ", float64" in SVC(precision="float64").fit(X, y).backend_info_
    # float32 data get what they need too
    assert ", float64" in SVC(C=1e6).fit(X.astype(np.float32), y).backend_info_
    np.testing.assert_allclose(model.objective_, wide.objective_, rtol=1e-4)
    np.testing.assert_allclose(
        model.decision_function(X), wide.decision_function(X), atol=5 * model.tol
    )
