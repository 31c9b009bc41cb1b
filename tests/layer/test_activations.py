"""The profiles' formulas and their arguments, against the definition; the algebra of shifts."""

import numpy as np
import pytest

from gpurbf.data.quantize import Quantization
from gpurbf.layer import distance
from gpurbf.layer.activation import FORMULAS, OF_DISTANCE, Activation, form, in_tile
from gpurbf.layer.backends.blas import matmul
from gpurbf.layer.backends.cuda import cupy_kernels
from gpurbf.layer.backends.cuda.kernels.profiles import NUMBERS
from gpurbf.layer.backends.numba.activation_kernels import LOOPS
from tests import reference

ARGUMENT = {
    "squared": lambda value: np.maximum(value, 0),
    "root": lambda value: np.sqrt(np.maximum(value, 0)),
    "square": np.square,
    "dot": lambda value: value,
}
ACTIVATIONS = [
    *(Activation(m, p, 0.3) for m in ("euclidean", "manhattan") for p in reference.PROFILES),
    *(Activation("dot", p, 0.3, 0.5, 2) for p in reference.DOT_PROFILES),
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: f"{a.metric}, {a.profile}")
def test_a_profile_of_its_argument_is_the_definition(activation):
    rng = np.random.default_rng(0)
    X, C = rng.standard_normal((7, 5)), rng.standard_normal((9, 5))
    X[0] = C[0]
    value = reference.METRICS[activation.metric](X, C)
    if activation.metric == "euclidean":
        value = value**2
    H = FORMULAS[activation.profile](ARGUMENT[form(activation)](value), activation)
    np.testing.assert_allclose(H, reference.hidden(X, C, *activation), 1e-13, 1e-13)


def test_every_table_of_profiles_has_the_same_names():
    assert set(FORMULAS) == reference.PROFILES.keys() | reference.DOT_PROFILES.keys()
    assert set(LOOPS) == set(NUMBERS) == set(FORMULAS) | {"identity"}
    # The statements of "poly" depend on the degree.
    assert set(cupy_kernels._STATEMENTS) | {"poly"} == set(LOOPS)
    assert OF_DISTANCE < set(FORMULAS)


def test_a_callable_is_applied_outside_the_tile():
    assert in_tile(Activation("euclidean", np.exp)) == "identity"


@pytest.mark.parametrize("quantization", [Quantization(1.0, 0), Quantization(16.0, 128)])
@pytest.mark.parametrize("shifts", [(0, 0), (0, 128), (128, 128), (128, 0)])
@pytest.mark.parametrize("metric", ["euclidean", "dot"])
def test_terms_make_distances_of_products_of_shifted_codes(metric, shifts, quantization):
    rng = np.random.default_rng(0)
    U, V = (rng.integers(0, 256, (rows, 11)) for rows in (5, 6))
    s, t = shifts
    rest = distance.terms_of(metric, 11, quantization, s, t)
    row = distance.evaluate(rest.row, U - s, matmul.row_sums, np.int64)
    column = distance.evaluate(rest.column, V - t, matmul.row_sums, np.int64)
    value = row[:, None] + column + rest.alpha * ((U - s) @ (V - t).T)
    U, V = U - quantization.zero_point, V - quantization.zero_point
    exact = U @ V.T if metric == "dot" else np.square(U[:, None] - V).sum(axis=2)
    np.testing.assert_array_equal(value, exact)


@pytest.mark.parametrize("metric", ["euclidean", "manhattan", "dot"])
def test_the_unit_turns_values_of_codes_into_those_of_the_data(metric):
    quantization = Quantization(255.0, 0)
    U, V = np.random.default_rng(0).integers(0, 256, (2, 4, 9))
    power = 1 if metric == "manhattan" else 2
    value = reference.METRICS[metric](U, V), reference.METRICS[metric](U / 255, V / 255)
    codes, data = (v**2 if metric == "euclidean" else v for v in value)
    np.testing.assert_allclose(distance.unit(metric, quantization) * codes, data, 1e-12)
    assert distance.unit(metric, quantization) == 255.0**-power and distance.unit(metric, None) == 1


def test_32_bits_hold_the_distances_of_so_many_codes():
    assert 255**2 * distance.INT32_FEATURES < 2**31 <= 255**2 * (distance.INT32_FEATURES + 1)
