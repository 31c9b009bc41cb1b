"""The CUDA kernels in Numba's simulator against the definition, over shapes that fit no tile."""

import numpy as np
import pytest

from benchmarks import _cuda_naive_kernels
from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import FORMS, Activation
from gpurbf.layer.backends.cuda import memory, numba_cuda
from gpurbf.layer.backends.cuda.kernels import outputs, profiles, tile, wgmma
from gpurbf.layer.backends.cuda.numba_cuda import CudaTileLayer, codes_product
from gpurbf.layer.backends.tile import Tile
from gpurbf.runtime.jit import cuda_api
from tests import reference

PIXELS = Quantization(1.0, 0)
TURING, AMPERE = (7, 5), (8, 0)
# The smallest tiles of R = 4 and R = 8; the latter also the smallest that tensor cores take.
TINY, MEDIUM = tile.Shape(32, 8), tile.SHAPES["medium"]
SHAPES = [(1, 1, 1), (15, 33, 16), (33, 17, 65)]
METRICS = ["euclidean", "manhattan", "dot"]


def tiles(shape=TINY, capability=TURING, multiprocessors=1, codes=None):
    device = memory.Device("simulated", capability, multiprocessors, 1 << 20)
    stated = Tile() if shape is None else Tile(*shape)
    return numba_cuda.Tiles(np, device, add, codes or codes_product(device), lambda: stated)


def add(shares, out):
    out[...] = shares.sum(axis=0)


def matvec(layer, X, W):
    """H @ W, written into memory that is not a number."""
    out = np.full((len(X), W.shape[1]), np.nan, layer.dtype)
    layer.matvec(X, layer.pack_weights(W), out)
    return out


def samples(N, m, n, kind="float", seed=0):
    rng = np.random.default_rng(seed)
    if kind == "codes":
        return [rng.integers(0, 256, (rows, n)).astype(np.uint8) for rows in (N, m)]
    return [rng.standard_normal((rows, n)) for rows in (N, m)]


def activations_of(X, C, activation, dtype=np.float64, quantization=None, **options):
    H = np.full((len(X), len(C)), np.nan, dtype)
    CudaTileLayer(tiles(**options), C, activation, dtype, quantization).activations(X, H)
    return H


def assert_close(actual, exact, dtype):
    tolerance = reference.TOLERANCE[np.dtype(dtype)]
    atol = tolerance * max(1, np.abs(exact).max(initial=0))
    np.testing.assert_allclose(actual, exact, rtol=tolerance, atol=atol)


def distances(metric):
    return Activation(metric, "linear" if metric == "dot" else "identity")


def exact_distances(X, C, metric):
    return np.rint(reference.METRICS[metric](X, C) ** (1 if metric == "dot" else 2))


def test_this_is_the_simulator():
    assert cuda_api.SIMULATED


@pytest.mark.parametrize(
    "product, shape",
    [("multiply", TINY), ("mma", MEDIUM), ("wgmma", tile.SHAPES["large"])]
    + [(product, tile.SHAPES["large"]) for product in ("dp4a", "mma")],
)
def test_every_output_is_one_thread_s_and_sums_come_from_different_banks(product, shape):
    own = (wgmma.placing(shape) if product == "wgmma" else tile._placing(product, shape))[1]
    rows, number = outputs.layout(product, shape.M // shape.B)
    n_columns = (shape.M // shape.B) ** 2 // rows
    written, owners = np.zeros((shape.M, shape.M), int), [set() for _ in range(shape.M)]
    banks = []
    for t in range(shape.B**2):
        row, column, owner = own(t)
        banks.append((row * tile.partials_width(product, shape) + owner) % 32)
        for i in range(rows):
            owners[row + 8 * i].add(owner)
            for j in range(n_columns):
                written[row + 8 * i, column + outputs.column_of(j)] += 1
    assert (written == 1).all()
    assert all(found == set(range(tile.owners(product, shape))) for found in owners)
    assert sorted(number(i, j) for i in range(rows) for j in range(n_columns)) == list(
        range(rows * n_columns)
    )
    assert all(len(set(banks[w : w + 32])) == 32 for w in range(0, len(banks), 32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("N, m, n", SHAPES)
def test_real_data_of_any_shape(N, m, n, metric, dtype):
    X, C = (A.astype(dtype) for A in samples(N, m, n))
    H = activations_of(X, C, Activation(metric, "identity"), dtype)
    exact = reference.METRICS[metric](X, C) ** (1 if metric == "dot" else 2)
    assert_close(H, exact, dtype)


@pytest.mark.parametrize("shape", [TINY, MEDIUM], ids=str)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("N, m, n", [(16, 33, 70)])
def test_codes_are_exact_by_four_bytes_an_instruction(N, m, n, metric, shape):
    X, C = samples(N, m, n, "codes")
    H = activations_of(X, C, distances(metric), quantization=PIXELS, shape=shape)
    np.testing.assert_array_equal(H, exact_distances(X, C, metric))


@pytest.mark.parametrize("metric", ["euclidean", "dot"])
@pytest.mark.parametrize("N, m, n", [(65, 15, 33), (17, 70, 130)])
def test_codes_are_exact_on_tensor_cores(N, m, n, metric):
    X, C = samples(N, m, n, "codes")
    H = activations_of(
        X, C, distances(metric), quantization=PIXELS, shape=MEDIUM, capability=AMPERE
    )
    np.testing.assert_array_equal(H, exact_distances(X, C, metric))


def test_codes_are_exact_on_hopper(monkeypatch):
    """Two warpgroups, rows and columns beyond the samples and centers, four slices in three."""
    monkeypatch.setattr(numba_cuda, "_PADDED", 128)
    X, C = samples(75, 18, 200, "codes")
    options = {"shape": tile.SHAPES["large"], "capability": (9, 0), "codes": "wgmma"}
    H = activations_of(X, C, distances("euclidean"), quantization=PIXELS, **options)
    np.testing.assert_array_equal(H, exact_distances(X, C, "euclidean"))
    with pytest.raises(ValueError, match=r"wgmma has M = 128"):
        activations_of(
            X, C, distances("euclidean"), quantization=PIXELS, **options | {"shape": MEDIUM}
        )


@pytest.mark.parametrize("quantization", [Quantization(255.0, 0), Quantization(16.0, 128)])
@pytest.mark.parametrize("metric", METRICS)
def test_a_quantization_is_its_numbers(metric, quantization):
    X, C = samples(20, 30, 40, "codes")
    A, B = ((Z.astype(float) - quantization.zero_point) / quantization.denominator for Z in (X, C))
    activation = Activation(metric, "linear" if metric == "dot" else "laplacian", 0.01)
    H = activations_of(X, C, activation, quantization=quantization)
    assert_close(H, reference.hidden(A, B, *activation), np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "metric, profile",
    [*(("euclidean", name) for name in reference.PROFILES), ("manhattan", "laplacian"),
     ("manhattan", "gaussian")],
)  # fmt: skip
def test_every_profile(metric, profile, dtype):
    X, C = (A.astype(dtype) for A in samples(18, 33, 7))
    length = reference.METRICS[metric](X, C).max()
    gamma = 0.6 / length if profile in ("laplacian", "triangular") else 0.9 / length**2
    activation = Activation(metric, profile, gamma)
    assert_close(
        activations_of(X, C, activation, dtype), reference.hidden(X, C, *activation), dtype
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "profile, degree", [("linear", 3), ("sigmoid", 3), ("poly", 0), ("poly", 5)]
)
def test_every_profile_of_a_dot_product(profile, degree, dtype):
    X, C = (A.astype(dtype) / 4 for A in samples(18, 33, 7))
    activation = Activation("dot", profile, 0.3, 0.5, degree)
    assert_close(
        activations_of(X, C, activation, dtype), reference.hidden(X, C, *activation), dtype
    )


@pytest.mark.parametrize("profile", ["gaussian", "thin-plate"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_below_the_smallest_normal_number_is_zero(profile, dtype):
    tiny = float(np.finfo(dtype).tiny)
    X, C = np.array([[0.0]], dtype), np.array([[1.0]], dtype)
    gamma = -np.log(tiny / 8) if profile == "gaussian" else tiny / 8
    assert activations_of(X, C, Activation("euclidean", profile, gamma), dtype) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_an_offset_costs_no_digits(metric, dtype):
    X, C = (np.round(A * 64) / 64 + 100 for A in samples(33, 40, 30))
    activation = Activation(metric, "laplacian", 0.05)
    H = activations_of(X.astype(dtype), C.astype(dtype), activation, dtype)
    assert_close(H, reference.hidden(X, C, *activation), dtype)


@pytest.mark.parametrize(
    "multiprocessors, k, dtype",
    [
        (1, 1, np.float64),
        (64, 8, np.float32),
        (1, 9, np.float32),
        (64, 9, np.float64),
        (1, 0, np.float64),
    ],
)
def test_scores_are_the_outputs_times_weights(multiprocessors, k, dtype):
    X, C = samples(35, 70, 20, "codes")
    W = np.random.default_rng(1).standard_normal((70, k)).astype(dtype)
    activation = Activation("euclidean", "gaussian", 3e-6)
    exact = reference.hidden(X, C, *activation) @ W
    layer = CudaTileLayer(tiles(multiprocessors=multiprocessors), C, activation, dtype, PIXELS)
    S = matvec(layer, X, W)
    assert S.dtype == dtype and S.shape == (35, k)
    np.testing.assert_allclose(S, exact, atol=200 * np.finfo(dtype).eps)


@pytest.mark.parametrize("shape, capability", [(MEDIUM, AMPERE), (MEDIUM, TURING)])
def test_scores_of_a_tile_with_two_rows_a_thread(shape, capability):
    X, C = samples(60, 70, 20, "codes")
    W = np.random.default_rng(1).standard_normal((70, 9))
    activation = Activation("euclidean", "gaussian", 3e-6)
    S = matvec(CudaTileLayer(tiles(shape, capability), C, activation, float, PIXELS), X, W)
    assert_close(S, reference.hidden(X, C, *activation) @ W, np.float64)


def test_scores_do_not_depend_on_the_launch():
    X, C = samples(20, 70, 10)
    W = np.random.default_rng(1).standard_normal((70, 3))
    results = []
    for multiprocessors in (1, 1, 64):
        activation = Activation("euclidean", "gaussian", 0.02)
        some = tiles(multiprocessors=multiprocessors)
        results.append(matvec(CudaTileLayer(some, C, activation, float, None), X, W))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], results[2], 1e-13, 1e-13)


@pytest.mark.parametrize("metric", METRICS)
def test_distances_beyond_32_bits_stay_exact(metric, monkeypatch):
    monkeypatch.setattr(numba_cuda, "INT32_FEATURES", 64)
    X, C = samples(5, 6, 2 * 64 + 3, "codes")
    H = activations_of(X, C, distances(metric), quantization=PIXELS)
    np.testing.assert_array_equal(H, exact_distances(X, C, metric))
    profile = "poly" if metric == "dot" else "laplacian"
    activation = Activation(metric, profile, 1e-5 if metric == "dot" else 1e-3, 0.5, 2)
    H = activations_of(X, C, activation, np.float32, PIXELS)
    assert_close(H, reference.hidden(X, C, *activation), np.float32)


@pytest.mark.parametrize("N, m, n", [(0, 3, 4), (3, 4, 0)])
def test_nothing_is_an_array_too(N, m, n):
    X, C = samples(N, m, n)
    assert activations_of(X, C, Activation("euclidean", "gaussian")).shape == (N, m)
    layer = CudaTileLayer(tiles(), C, Activation("euclidean", "gaussian"), float, None)
    exact = reference.hidden(X, C, "euclidean", "gaussian", 1.0) @ np.ones((m, 2))
    np.testing.assert_array_equal(matvec(layer, X, np.ones((m, 2))), exact)


def test_rows_are_independent_of_their_batch():
    X, C = samples(40, 35, 20)
    activation = Activation("euclidean", "gaussian", 0.02)
    H = activations_of(X, C, activation, np.float32)
    for i in (0, 13, 39):
        one = activations_of(X[i : i + 1], C, activation, np.float32)
        np.testing.assert_array_equal(one[0], H[i])


def test_inputs_are_not_modified_and_may_be_strided_or_of_any_type():
    X, C = samples(20, 10, 12, "codes")
    X, C = X[::2, ::-1].astype(np.int16), np.asfortranarray(C).astype(np.float32)[:, ::-1]
    X.flags.writeable = C.flags.writeable = False
    H = activations_of(X, C, Activation("manhattan", "identity"))
    np.testing.assert_array_equal(H, reference.manhattan(X, C) ** 2)


@pytest.mark.parametrize("shape", [(48, 16), (96, 12), (256, 32), (64, 16)])
def test_a_tile_that_is_not_compiled_is_refused(shape):
    X, C = samples(3, 3, 5, "codes")
    with pytest.raises(ValueError, match="M = 8 B"):
        activations_of(
            X, C, distances("euclidean"), quantization=PIXELS, shape=shape, capability=AMPERE
        )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("N, m, n", [(1, 1, 1), (9, 5, 16)])
def test_the_baseline_of_one_thread_a_pair_is_right_too(N, m, n, metric):
    X, C = samples(N, m, n)
    H, B = np.full((N, m), np.nan), 4
    rule = FORMS["dot" if metric == "dot" else "squared"]
    arguments = _cuda_naive_kernels.METRICS[metric], rule, profiles.NUMBERS["identity"], 1.0, 0.0, 3
    _cuda_naive_kernels.pairs[(-(-N // B), -(-m // B)), (B, B)](X, C, *arguments, H)
    exact = reference.METRICS[metric](X, C) ** (2 if metric == "euclidean" else 1)
    assert_close(H, exact, np.float64)
