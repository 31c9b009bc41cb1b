"""No answer depends on a sample's neighbours: how many there are, where they lie, what they are."""

import numpy as np
import pytest
from callers import answers
from sklearn.datasets import load_digits

from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer, config_context

ESTIMATORS = {
    "RBFLayer": lambda **o: RBFLayer(60, centers="random", random_state=0, **o),
    "RBFClassifier": lambda **o: RBFClassifier(60, random_state=0, **o),
    "FSVC": lambda **o: FSVC(2.0, random_state=0, **o),
    # All samples are support vectors, more than a thousand.
    "SVC": lambda **o: SVC(C=0.01, **o),
    "SVC, linear": lambda **o: SVC(kernel="linear", **o),
    "SVC, laplacian": lambda **o: SVC(kernel="laplacian", **o),
}
pytestmark = pytest.mark.filterwarnings("ignore:.* outside the radius:UserWarning")


@pytest.fixture(params=ESTIMATORS)
def model(request, backend):
    X, y = load_digits(return_X_y=True)
    return ESTIMATORS[request.param](backend=backend).fit(X[:1100] / 16, y[:1100])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.3, 1e3, 1 / 3e5])
def test_an_odd_row_does_not_change_the_answers_for_other_rows(model, dtype, value):
    X = (load_digits().data[1100:] / 16).astype(dtype)
    odd = X.copy()
    odd[70, 9] = value
    others = np.delete(np.arange(len(X)), 70)
    with_it, without = answers(model, odd), answers(model, X[others])
    np.testing.assert_equal({name: a[others] for name, a in with_it.items()}, without)
    alone = {name: a[70:71] for name, a in with_it.items()}
    np.testing.assert_equal(alone, answers(model, odd[70:71]))


def test_answers_do_not_depend_on_batch_size_or_memory_budget(model):
    X = load_digits().data[1100:1500] / 16
    whole = answers(model, X)
    # Megabytes, also of types in which so many bytes are no number.
    for memory in (0.05, np.uint8(200), np.int32(4096)):
        with config_context(memory=memory):
            np.testing.assert_equal(whole, answers(model, X))
    for size in (1, 3, 17, 64, 250):
        parts = [answers(model, X[i : i + size]) for i in range(0, min(400, 20 * size), size)]
        for name in whole:
            joined = np.concatenate([part[name] for part in parts])
            np.testing.assert_array_equal(whole[name][: len(joined)], joined, err_msg=name)


@pytest.mark.parametrize("denominator, dtype", [(1, np.float64), (1, np.int8), (255, np.float32)])
def test_bytes_are_the_numbers_that_they_are_to_a_model_of_others(denominator, dtype, backend):
    """Signed integers or rescaled pixels are codes, of which bytes are some."""
    X, y = load_digits(return_X_y=True)
    codes = (X - 8 if denominator == 1 else X).astype(dtype) / dtype(denominator)
    for make in ESTIMATORS.values():
        model = make(backend=backend).fit(codes[:500].astype(dtype), y[:500])
        some = (X[:100] > 8).astype(dtype)
        np.testing.assert_equal(answers(model, some.astype(np.uint8)), answers(model, some))


def test_the_same_numbers_in_another_storage_are_the_same_data():
    X, y = load_digits(return_X_y=True)
    exact, rounded = X / 16, X / 10
    for name in ("RBFClassifier", "SVC"):
        model = ESTIMATORS[name]().fit(exact[:500].astype(np.float32), y[:500])
        double = ESTIMATORS[name]().fit(exact[:500], y[:500])
        assert "exact 8-bit integer distances / 16" in model.backend_info_
        np.testing.assert_array_equal(model.predict(exact), double.predict(exact))
        np.testing.assert_array_equal(
            model.decision_function(exact.astype(np.float32)), model.decision_function(exact)
        )
    assert "exact" not in ESTIMATORS["SVC"]().fit(rounded, y).backend_info_
