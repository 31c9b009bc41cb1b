"""The activations: errors over the whole range, and the pass from products to activations."""

import re

import numpy as np
import pytest
from callers import run_python

from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.numba.activation_kernels import LOOPS, epilogue_rows, rule_words
from tests import reference
from tests.layer.numba.test_microkernels import inner_loop


def run(profile, values, gamma=1.0, coef0=0.0, degree=3):
    """The profile of an array of values, through the pass that every backend uses."""
    values = np.atleast_2d(values)
    rows, columns = (np.zeros(length, values.dtype) for length in values.shape)
    out = np.empty_like(values)
    rule = rule_words(Activation("dot", profile, gamma, coef0, degree), 1, 1.0, out.dtype, out.size)
    epilogue_rows(0, len(values), values, rows, columns, rule, out)
    return out[0]


def ulps(result, exact):
    """Largest distance of results from exact values in units of the last place of the dtype."""
    tiny = np.finfo(result.dtype).tiny
    with np.errstate(under="ignore", over="ignore"):
        unit = np.spacing(np.maximum(np.abs(exact).astype(result.dtype), tiny))
    return (np.abs(result.astype(exact.dtype) - exact) / unit.astype(exact.dtype)).max()


def spread(dtype, low, high):
    """Many numbers over all magnitudes between two positive bounds, the bounds among them."""
    rng = np.random.default_rng(0)
    values = np.exp(rng.uniform(np.log(low), np.log(high), 200_000))
    return np.concatenate([values, np.linspace(low, high, 100_000), [low, high]]).astype(dtype)


# The exact values; the largest argument in float32 and in float64. The least is the least normal.
EXACT = {
    "gaussian": (lambda s: np.exp(-s), 87.3, 708.3),
    "sigmoid": (np.tanh, 50, 50),
    "multiquadric": (lambda s: np.sqrt(1 + s), 1e6, 1e6),
    "inverse-multiquadric": (lambda s: 1 / np.sqrt(1 + s), 1e6, 1e6),
    "triangular": (lambda s: np.maximum(0, 1 - s), 1e6, 1e6),
}


@pytest.mark.parametrize("profile", EXACT)
def test_profiles_are_within_two_ulps_over_their_whole_range(profile, dtype):
    exact, *largest = EXACT[profile]
    x = spread(dtype, np.finfo(dtype).tiny, largest[dtype == np.float64])
    x = np.concatenate([x, -x]) if profile == "sigmoid" else x
    assert ulps(run(profile, x), exact(x.astype(np.longdouble))) <= 2


# Multiplications and additions in one, of each number, of profiles in float32 and float64: two for
# k and r each, the polynomial's.
FUSED = {"gaussian": {"4s": 8, "2d": 13}, "sigmoid": {"4s": 14, "2d": 19}}
# Prints what Numba writes of profiles. LLVM must not have optimized it, nor made code of it for an
# ARM CPU: that joins branches, after which tanh of float64 stays a call in the loop. And a process
# that has compiled tanh and exp like this would keep them for its other kernels.
WRITE = """
from numba import cfunc, types
from gpurbf.layer.backends.numba.activation_kernels import LOOPS
for profile in ("gaussian", "sigmoid"):  # as in FUSED
    for number in (types.float32, types.float64):
        arguments = types.CPointer(number), types.intp, types.float64, types.float64, types.intp
        write = cfunc(types.void(*arguments), fastmath={"contract"}, error_model="numpy")
        print(write(LOOPS[profile])._library.get_llvm_str(), "; END")
"""


def test_on_arm_exponentials_are_loops_over_vectors():
    """Compiled there on whatever CPU this is, from what Numba writes before it optimizes."""
    texts = iter(run_python(WRITE, NUMBA_OPT="0").stdout.split("; END"))
    for profile, counts in FUSED.items():
        for lanes, count in counts.items():
            meant = rf"fmla\s+v\d+\.{lanes}"
            inner = inner_loop(next(texts), meant, arm=True)
            assert len(re.findall(meant, inner)) == count, profile
            assert not re.search(r"\bbl\b|\[sp|fmadd", inner), profile


def test_thin_plate_is_within_three_ulps_of_s_log_s(dtype):
    info = np.finfo(dtype)
    x = np.concatenate([spread(dtype, info.tiny * 1e4, info.max / 1e4), spread(dtype, 0.5, 2)])
    s = x.astype(np.longdouble)
    # The rounded logarithm and two rounded products.
    assert ulps(run("thin-plate", x), 0.5 * s * np.log(s)) <= 3


def test_extreme_arguments_give_the_limits_and_nan_stays_nan(dtype):
    info = np.finfo(dtype)
    x = np.array([0, info.smallest_subnormal, info.tiny, info.max, np.inf, np.nan], dtype)
    for profile in ("gaussian", "laplacian", "triangular"):
        np.testing.assert_array_equal(run(profile, x), [1, 1, 1, 0, 0, np.nan])
    np.testing.assert_array_equal(run("inverse-multiquadric", x)[[0, 1, 2, 4]], [1, 1, 1, 0])
    np.testing.assert_array_equal(run("multiquadric", x)[[0, 1, 2, 4]], [1, 1, 1, np.inf])
    np.testing.assert_array_equal(run("thin-plate", x)[[0, 1]], [0, 0])
    np.testing.assert_array_equal(run("sigmoid", x)[[0, 3, 4]], [0, 1, 1])
    np.testing.assert_array_equal(run("sigmoid", -x)[[0, 3, 4]], [0, -1, -1])
    for profile in LOOPS.keys() - {"thin-plate"}:
        assert np.isnan(run(profile, x)[5]), profile


def test_no_result_is_subnormal(dtype):
    x = np.linspace(80, 800, 100_001).astype(dtype)
    H = run("gaussian", x)
    assert np.all((H == 0) | (H >= np.finfo(dtype).tiny))


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 7])
def test_poly_is_the_power(degree, dtype):
    t = np.linspace(-3, 3, 1001).astype(dtype)
    exact = (0.5 * t.astype(float) + 0.25) ** degree
    tolerance = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(run("poly", t, 0.5, 0.25, degree), exact, tolerance, tolerance)


@pytest.mark.parametrize("products", [np.int32, np.float32])
@pytest.mark.parametrize("m", [1, 17, 2049])
def test_pass_from_exact_products_is_exact_before_the_profile(products, dtype, m):
    rng = np.random.default_rng(m)
    X, C = rng.integers(0, 256, (3, 20)), rng.integers(0, 256, (m, 20))
    P = (X @ C.T).astype(products)
    squares = [(A * A).sum(axis=1).astype(np.int32) for A in (X, C)]
    out = np.empty((3, m), dtype)
    rule = rule_words(Activation("euclidean", "laplacian"), -2, 0.25, out.dtype, m)
    rule[4] = 0  # the address of the profile
    epilogue_rows(0, 3, P, *squares, rule, out)
    exact = reference.euclidean(X, C) / 2
    np.testing.assert_array_equal(out, np.sqrt((exact**2).astype(dtype)))


def test_pass_may_write_over_its_products_and_clamps_at_zero():
    P = np.array([[1.0, 5.0], [2.0, -3.0]], np.float32)
    zeros = np.zeros(2, np.float32)
    rule = rule_words(Activation("euclidean", "linear"), -2, 1.0, P.dtype, 2)
    epilogue_rows(0, 2, P, zeros, zeros, rule, P)
    np.testing.assert_array_equal(P, [[0, 0], [0, 6]])
