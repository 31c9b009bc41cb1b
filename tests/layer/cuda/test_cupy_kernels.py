"""The C++ of the cupy backend: compiled by NVRTC for every GPU, and run, its frames by g++.

NVRTC needs no GPU. g++ compiles the same text with each thread of a block as a thread of the host.
"""

import ctypes
import shutil
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import reference
import standin
from standin.kernels import TYPES

from gpurbf.layer import distance
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.cuda import cupy_kernels

ON_HOST = Path(__file__).parent / "on_host.cpp"
GAUSSIAN = cupy_kernels.epilogue(Activation("euclidean", "gaussian", 1e-3), -2, 1.0, np.float32)
PROFILES = {"euclidean": reference.PROFILES, "dot": reference.DOT_PROFILES}
# Dtypes of products, terms and activations: of codes, of those with many inputs, and of others.
CODES = np.int32, np.int32, np.float32
KINDS = [
    CODES,
    (np.int32, np.int32, np.float64),
    (np.int32, np.float64, np.float32),
    (np.float32,) * 3,
    (np.float64,) * 3,
]
# Of samples, the shift, packed rows and terms.
ROWS = [
    (np.uint8, np.float32, np.int8, np.int32, None),
    (np.uint8, np.float32, np.uint8, np.int32, None),
    (np.uint8, np.float64, np.float32, np.float32, "samples"),
    (np.float32, np.float32, np.float32, np.float32, "centers"),
    (np.float64, np.float32, np.float32, np.float32, None),
    (np.float32, np.float64, np.float64, np.float64, None),
]


def sources():
    """Each text and the name of its kernel."""
    for row in ROWS:
        yield "gpurbf_rows", cupy_kernels.rows_source(*row)
    for kind in KINDS:
        yield "gpurbf_outputs", cupy_kernels.outputs_source(GAUSSIAN.profile, *kind)
        yield "gpurbf_scores", cupy_kernels.scores_source(GAUSSIAN.profile, *kind, 10)
    for metric, name in ((metric, name) for metric, names in PROFILES.items() for name in names):
        activation = Activation(metric, name, 1.0, 0.5, 5)
        text = cupy_kernels.epilogue(activation, 1, 1.0, np.float32).profile
        yield "gpurbf_scores", cupy_kernels.scores_source(text, *CODES, 16)


@pytest.mark.parametrize("architecture", ["compute_75", "compute_90", "compute_100"])
def test_nvrtc_compiles_every_kernel_without_local_memory(architecture):
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:
        pytest.skip(f"NVRTC: {error}")

    def said(program, size, get):
        _, length = size(program)
        # Not bytes: those of length 1, an empty log, are shared by the whole process.
        text = bytearray(length)
        get(program, text)
        return text.decode().rstrip("\0")

    for name, text in sources():
        _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], [])
        option = f"--gpu-architecture={architecture}".encode()
        (status,) = nvrtc.nvrtcCompileProgram(program, 1, [option])
        log = said(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        assert int(status) == 0, log
        compiled = said(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        assert f".entry {name}" in compiled
        assert "ld.local" not in compiled and "st.local" not in compiled
        # Nothing of a float32 layer is computed in float64, of which consumer GPUs have few units.
        if "double" not in text:
            assert ".f64" not in compiled


class OnHost:
    """A kernel that g++ has compiled."""

    def __init__(self, folder, code, name):
        parameters = " ".join(code.split(f"__global__ void {name}(")[1].split(")")[0].split())
        names = ", ".join(parameter.split()[-1] for parameter in parameters.split(","))
        source = folder / f"{name}{len(list(folder.iterdir()))}.cu"
        source.write_text(code)
        words = {"KERNEL": f'"{source}"', "NAME": name}
        words |= {"PARAMETERS": parameters, "ARGUMENTS": names}
        library = source.with_suffix(".so")
        command = ["g++", "-std=c++20", "-O1", "-pthread", "-shared", "-fPIC", "-ffp-contract=off"]
        command += [f"-D{word}={text}" for word, text in words.items()]
        subprocess.run([*command, str(ON_HOST), "-o", str(library)], check=True)
        self.launch = ctypes.CDLL(str(library)).launch

    def __call__(self, grid, block, arguments):
        given = (
            ctypes.c_void_p(value._a.ctypes.data)
            if isinstance(value, standin.ndarray)
            else np.ctypeslib.as_ctypes_type(value.dtype)(value)
            for value in arguments
        )
        self.launch((ctypes.c_uint * 4)(*(*grid, 1)[:2], *(*block, 1)[:2]), *given)


@pytest.fixture
def both(tmp_path):
    """Two CuPys of the stand-in: kernels in NumPy, and the text itself compiled for the host."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    assert set(cupy_kernels._C_TYPES.values()) < set(TYPES)
    first, second = standin.make()["cupy"], standin.make()["cupy"]
    second.RawKernel = partial(OnHost, tmp_path)
    yield first, second
    cupy_kernels._kernel.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("x, of_shift, dtype, terms, parts", ROWS[:3], ids=str)
def test_rows_are_moved_padded_and_summed(both, x, of_shift, dtype, terms, parts):
    rng = np.random.default_rng(0)
    by = 0 if dtype == np.uint8 else 128
    A, shift = rng.integers(0, 256, (13, 37)).astype(x), np.full(37, by, of_shift)
    results = []
    for xp in both:
        packed = xp.empty((16, 48 * (3 if parts else 1)), dtype)
        row_terms = xp.empty(13, terms)
        given = (xp.asarray(A), xp.asarray(shift), distance.Coefficients(1, 2, 3))
        cupy_kernels.move_rows(xp, *given, packed, row_terms, parts)
        results.append((packed.get(), row_terms.get()))
    np.testing.assert_equal(results[1], results[0])
    values = A.astype(float) - by
    np.testing.assert_array_equal(results[1][1], (values**2 + 2 * values).sum(axis=1) + 3)


@pytest.mark.slow
def test_a_row_that_is_split_is_at_no_distance_from_itself(both):
    """Its term is the product of its parts as a sample and as a center."""
    A = np.random.default_rng(0).normal(size=(5, 33)).astype(np.float32)
    for xp in both:
        given = xp.asarray(A), xp.zeros(33, np.float32), distance.Coefficients(1, 0, 0)
        packed, terms = xp.empty((2, 5, 3 * 36), np.float32), xp.empty((2, 5), np.float64)
        for side, to, sums in zip(("samples", "centers"), packed, terms):
            cupy_kernels.move_rows(xp, *given, to, sums, side)
        samples, centers = packed.get().astype(np.float64)
        for sums in terms.get():
            np.testing.assert_allclose((samples * centers).sum(axis=1), sums, rtol=1e-14)


@pytest.mark.slow
def test_nan_is_split_into_nan(both):
    """That of a GPU, all ones, became 0: a sample with a missing number got a prediction."""
    A = np.full((1, 1), 0x7FFFFFFF, np.uint32).view(np.float32)
    for xp in both:
        packed, terms = xp.empty((1, 12), np.float32), xp.empty(1, np.float32)
        given = xp.asarray(A), xp.zeros(1, np.float32), distance.Coefficients(1, 0, 0)
        cupy_kernels.move_rows(xp, *given, packed, terms, "samples")
        assert np.isnan(packed.get()[0, ::4]).all() and np.isnan(terms.get()).all()


@pytest.mark.slow
@pytest.mark.parametrize("N, m, k", [(1, 1, 1), (5, 131, 3)])
def test_scores_are_activations_times_weights(both, monkeypatch, N, m, k):
    # Few threads, because the host has few; several blocks of samples and of outputs.
    monkeypatch.setattr(cupy_kernels, "_WARPS", 2)
    monkeypatch.setattr(cupy_kernels, "_Q", 2)
    rng = np.random.default_rng(0)
    P = rng.integers(-3000, 3000, (N, -(-m // 16) * 16)).astype(np.int32)
    rows, columns = (rng.integers(10_000, 20_000, size).astype(np.int32) for size in (N, m))
    W = rng.normal(size=(k, m)).astype(np.float32)
    exact = np.exp(-1e-3 * (rows[:, None] + columns - 2.0 * P[:, :m]).clip(0))
    for xp in both:
        H, S = xp.empty((N, m), np.float32), xp.empty((N, k), np.float32)
        given = xp.asarray(P), xp.asarray(rows), xp.asarray(columns)
        cupy_kernels.write(xp, GAUSSIAN, *given, H)
        cupy_kernels.write(xp, GAUSSIAN, *given, S, xp.asarray(W))
        np.testing.assert_allclose(H.get(), exact, rtol=1e-4, atol=1e-30)
        np.testing.assert_allclose(S.get(), exact @ W.T, rtol=1e-4, atol=1e-5)
