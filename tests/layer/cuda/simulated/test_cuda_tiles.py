"""The CUDA kernels in Numba's simulator against the definition, over shapes that fit no tile."""

import numpy as np
import pytest
import standin
from standin import GAUSSIAN

from benchmarks import _cuda_naive_kernels
from gpurbf.layer.activation import DOT, SQUARED, Activation
from gpurbf.layer.backends import Tile, forced
from gpurbf.layer.backends.blas import matmul
from gpurbf.layer.backends.cuda.device import Device, memory_of
from gpurbf.layer.backends.cuda.kernels import outputs, profiles, registers, tile
from gpurbf.layer.backends.cuda.numba_cuda import CudaTileLayer
from tests import reference
from tests.layer.cuda import kernels_in_numpy
from tests.layer.numba.test_tiles import PIXELS, integers, of
from tests.layer.test_layer import assert_close, data

TURING, AMPERE = (7, 5), (8, 0)
# The smallest tiles of R = 4 and R = 8; the latter also the smallest that tensor cores take.
TINY, MEDIUM = tile.Shape(32, 8), tile.SHAPES["medium"]
METRICS = ["euclidean", "manhattan", "dot"]
XP = standin.make()["cupy"]


def layer_of(
    C, activation, dtype=np.float64, quantization=None, shape=TINY, capability=TURING, processors=1
):
    """A layer of the tiles; its packing is CuPy's, which the stand-in plays."""
    device = Device("simulated", capability, processors)
    with forced(Tile(*shape)):
        return CudaTileLayer(memory_of(XP), device, XP.asarray(C), activation, dtype, quantization)


def activations_of(X, C, activation, dtype=np.float64, quantization=None, **options):
    out = XP.full((len(X), len(C)), np.nan, dtype)
    layer_of(C, activation, dtype, quantization, **options).evaluate(XP.asarray(X), out)
    return out.get()


@pytest.mark.parametrize(
    "product, shape",
    [("multiply", TINY), ("mma", MEDIUM), *((p, tile.SHAPES["large"]) for p in ("dp4a", "mma"))],
)
def test_every_output_is_one_thread_s_and_sums_come_from_different_banks(product, shape):
    i, n_threads = np.arange(shape.M // shape.B), shape.B**2
    first_row, first_column, owner = tile._placing(product, shape)[1](np.arange(n_threads))
    rows, columns = first_row[:, None] + 8 * i, first_column[:, None] + outputs.column_of(i)
    written, owned = np.zeros((shape.M, shape.M), int), np.zeros((shape.M, shape.B), int)
    np.add.at(written, (rows[:, :, None], columns[:, None]), 1)
    np.add.at(owned, (rows, owner[:, None]), 1)
    assert (written == 1).all() and (owned == 1).all()
    banks = (first_row * tile.partials_width(shape) + owner) % 32
    assert all(len(set(warp)) == 32 for warp in banks.reshape(-1, 32).tolist())


def test_the_outputs_of_a_lane_are_where_the_manual_has_them():
    for lane in range(32):
        first = [[lane // 4], [2 * (lane % 4)]]
        rows_and_columns = np.array(registers.FRAGMENT_D).T + first
        np.testing.assert_array_equal(rows_and_columns, kernels_in_numpy.fragments(lane)[2])


def test_rows_of_a_matrix_are_read_from_different_banks_at_aligned_addresses():
    """Eight rows of 16 bytes are all the banks there are: of the scalar loads, and of ldmatrix."""
    pitch = registers.PITCH // 4
    banks = {(row * pitch + word) % 32 for row in range(8) for word in range(4)}
    assert len(banks) == 32
    for load in (kernels_in_numpy.LOAD_A, kernels_in_numpy.LOAD_B):
        places = kernels_in_numpy.places(pitch, load)
        assert not (places % 4).any()
        for matrix in places.reshape(4, 8):
            assert len({(place + word) % 32 for place in matrix for word in range(4)}) == 32


@pytest.mark.parametrize(
    "metric, shape, capability, size",
    [*((metric, shape, TURING, (16, 33, 70)) for metric in METRICS for shape in (TINY, MEDIUM)),
     *((m, MEDIUM, AMPERE, size) for m in METRICS for size in ((65, 15, 33), (17, 70, 130)))],
)  # fmt: skip
def test_codes_are_exact_by_four_bytes_an_instruction_and_on_tensor_cores(
    metric, shape, capability, size
):
    X, C = data(np.uint8, *size)
    options = {"quantization": PIXELS, "shape": shape, "capability": capability}
    H = activations_of(X, C, of(metric), **options)
    np.testing.assert_array_equal(H, integers(X, C, metric))


@pytest.mark.parametrize("offset", [1e8, -1e8])
def test_manhattan_distances_far_from_zero_are_not_rounded_in_float32(offset):
    X, C = (A + offset for A in data(np.float64, 20, 10, 9))
    activation = Activation("manhattan", "inverse-multiquadric", 0.01)
    H = activations_of(X, C, activation, np.float32)
    assert np.abs(H - reference.hidden(X, C, *activation)).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_below_the_smallest_normal_number_is_zero(dtype):
    """Of thin plates: the exponential is PTX, which the simulator does not run."""
    (X, C), gamma = np.array([[[0.0]], [[1.0]]], dtype), float(np.finfo(dtype).tiny / 8)
    assert activations_of(X, C, Activation("euclidean", "thin-plate", gamma), dtype) == 0


@pytest.mark.parametrize(
    "shape, capability, processors, k, dtype",
    [(TINY, TURING, 1, 1, np.float64), (TINY, TURING, 64, 8, np.float32),
     (TINY, TURING, 1, 9, np.float32), (TINY, TURING, 64, 9, np.float64),
     (TINY, TURING, 1, 0, np.float64), (MEDIUM, TURING, 1, 9, np.float64),
     (MEDIUM, AMPERE, 1, 9, np.float32)],
)  # fmt: skip
def test_scores_are_the_outputs_times_weights(shape, capability, processors, k, dtype):
    X, C = data(np.uint8, 35, 70, 20)
    W = np.random.default_rng(1).standard_normal((70, k)).astype(dtype)
    activation = Activation("euclidean", "gaussian", 3e-6)
    options = {"shape": shape, "capability": capability, "processors": processors}
    layer, S = layer_of(C, activation, dtype, PIXELS, **options), XP.full((35, k), np.nan, dtype)
    layer.evaluate(XP.asarray(X), S, layer.pack(XP.asarray(W)))
    exact = reference.hidden(X, C, *activation) @ W
    np.testing.assert_allclose(S.get(), exact, atol=200 * np.finfo(dtype).eps)


def test_shares_of_scores_are_added_in_float64():
    """2²⁴ + 1 - 2²⁴, each the sum of a block, which float32 would make 0."""
    C, W, S = np.ones((70, 3), np.float32), np.zeros((70, 1)), XP.full((5, 1), np.nan, np.float32)
    W[[0, TINY.M, 2 * TINY.M], 0] = 2**24, 1, -(2**24)
    layer = layer_of(C, GAUSSIAN, np.float32, processors=64)
    layer.evaluate(XP.asarray(C[:5]), S, layer.pack(XP.asarray(W)))
    assert (S.get() == 1).all()


@pytest.mark.parametrize("metric", METRICS)
def test_distances_beyond_32_bits_stay_exact(metric, monkeypatch):
    monkeypatch.setattr(matmul, "INT32_FEATURES", 64)
    X, C = data(np.uint8, 5, 6, 2 * 64 + 3)
    H = activations_of(X, C, of(metric), quantization=PIXELS)
    np.testing.assert_array_equal(H, integers(X, C, metric))
    profile = "poly" if metric == "dot" else "laplacian"
    activation = Activation(metric, profile, 1e-5 if metric == "dot" else 1e-3, 0.5, 2)
    H = activations_of(X, C, activation, np.float32, PIXELS)
    assert_close(H, reference.hidden(X, C, *activation), np.float32)


def test_rows_are_independent_of_their_batch():
    X, C = data(float, 40, 35, 20)
    H = activations_of(X, C, GAUSSIAN, np.float32)
    for i in (0, 13, 39):
        one = activations_of(X[i : i + 1], C, GAUSSIAN, np.float32)
        np.testing.assert_array_equal(one[0], H[i])


@pytest.mark.parametrize("shape", [(48, 16), (96, 12), (256, 32), (64, 16)])
def test_a_tile_that_is_not_compiled_is_refused(shape):
    with pytest.raises(ValueError, match="M = 8 B"):
        layer_of(np.zeros((3, 5)), GAUSSIAN, quantization=PIXELS, shape=shape, capability=AMPERE)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("N, m, n", [(1, 1, 1), (9, 5, 16)])
def test_the_baseline_of_one_thread_a_pair_is_right_too(N, m, n, metric):
    X, C = data(float, N, m, n)
    H, B = np.full((N, m), np.nan), 4
    rule = DOT if metric == "dot" else SQUARED
    arguments = _cuda_naive_kernels.METRICS[metric], rule, profiles.NUMBERS["linear"], 1.0, 0.0, 3
    _cuda_naive_kernels.pairs[(-(-N // B), -(-m // B)), (B, B)](X, C, *arguments, H)
    exact = reference.METRICS[metric](X, C) ** (2 if metric == "euclidean" else 1)
    assert_close(H, exact, np.float64)
