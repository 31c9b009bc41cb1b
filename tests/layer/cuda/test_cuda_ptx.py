"""What the CUDA kernels are compiled to, without a GPU: PTX by NVVM, machine code by ptxas.

And what stands before the first launch: small grids, and the libraries that compile.
"""

import functools
import importlib
import os
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
import standin
from callers import run_python
from llvmlite import ir
from numba import typeof, types

from benchmarks import _cuda_naive_kernels
from gpurbf import BackendUnavailable
from gpurbf.layer.activation import DOT, ROOT, SQUARED, Epilogue
from gpurbf.layer.backends.cuda import numba_cuda
from gpurbf.layer.backends.cuda.kernels import profiles, tile, warps
from gpurbf.layer.backends.cuda.kernels.profiles import NUMBERS
from gpurbf.layer.backends.cuda.kernels.registers import asm
from gpurbf.runtime.jit import cuda_api
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import Recorder
from gpurbf.svm import _cuda_smo_kernels, cuda_pairs

# As numba-cuda compiles for a device: from 9.0 on for its architecture alone.
HOPPER = (9, 0, "a")
CAPABILITIES = [(7, 5), (8, 0), HOPPER, (10, 0, "a")]
_MMA = r"mma\.sync\S+m16n8k32\S+s32\.u8\.u8\.s32"
# Product, words of the operands, activations, shape, instruction, how often in a pass of the loop.
VARIANTS = {
    "float32": ("multiply", "float32", "float32", "large", r"fma\.rn\.f32", 256),
    "float64": ("multiply", "float64", "float64", "medium", r"fma\.rn\.f64", 128),
    "float32-small": ("multiply", "float32", "float32", "small", r"fma\.rn\.f32", 64),
    "manhattan-float32": ("manhattan", "float32", "float32", "medium", r"abs(\.ftz)?\.f32", 256),
    "manhattan-float64": ("manhattan", "float64", "float64", "medium", r"abs\.f64", 128),
    "dp4a": ("dp4a", "int32", "float32", "large", r"dp4a\.u32\.u32", 256),
    "sad": ("sad", "int32", "float32", "large", r"vabsdiff4\.u32\.u32\.u32\.add", 256),
    "mma": ("mma", "int32", "float32", "large", _MMA, 16),
    "mma-stored": ("mma", "int32", "float32", "large", _MMA, 16),
    "mma-float64": ("mma", "int32", "float64", "large", _MMA, 16),
}
# KB of shared memory of a multiprocessor, which has 65,536 registers; a block costs 1 KB more.
SHARED = {(7, 5): 64, (8, 0): 164, (9, 0): 228, (10, 0): 228}
LOCAL = r"\b(ld|st)\.local|__local_depot|\bcall\b"


@pytest.fixture(scope="module")
def ptx(compiled):
    """A function that compiles a variant of the tile for a compute capability, once."""

    @functools.cache
    def build(name, capability, form=None, profile="gaussian"):
        if capability < (8, 0) and name.startswith("mma"):
            pytest.skip("mma: needs compute capability 8.0")
        product, word, real, shape, *_ = VARIANTS[name]
        word, real = getattr(types, word), getattr(types, real)
        term = types.int32 if word == types.int32 else real
        signature = (
            word[:, ::1], word[:, ::1], term[::1], term[::1],
            typeof(Epilogue(1, 1.0, 1, 1, 1.0, 1.0, 1)),
            real[:, ::1], real[:, ::1], types.float64[:, :, ::1],
        )  # fmt: skip
        if form is None:
            form = SQUARED if product == "multiply" else DOT
        consumer = "-stored" in name, form, NUMBERS[profile], real.bitwidth // 8
        kernel = tile.kernel(product, tile.SHAPES[shape], capability >= (8, 0), *consumer)
        return compiled(kernel, signature, capability)

    return build


@pytest.fixture(scope="module")
def steps_ptx(compiled):
    """A function that compiles a step of SVC, as it is launched, for K of a type, once."""

    @functools.cache
    def build(name, real, capability):
        # Functions that kernels call are compiled once, for the GPU of the first.
        for module in (warps, _cuda_smo_kernels):
            importlib.reload(module)
        kernels = MagicMock(Pairs=_cuda_smo_kernels.Pairs)
        K = SimpleNamespace(xp=np, dtype=np.dtype(real), diagonal=np.zeros(4))
        problems = cuda_pairs.problems_of(np.array([0, 2, 4]), np.ones(4), [(0, 1)])
        rules = _cuda_smo_kernels.Rules(1e-3, 1000, 1, 0.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda_api, "argument", lambda array: array)
            patch.setattr(cuda_api, "current_stream", lambda: 0)
            patch.setattr(cuda_pairs, "cuda_smo_kernels", kernels)
            cuda_pairs.Rounds(K, problems, 1, rules).step(np.zeros(1, np.int32))
        given = getattr(kernels, name).__getitem__.return_value.call_args.args
        return compiled(getattr(_cuda_smo_kernels, name), tuple(map(typeof, given)), capability)

    return build


def blocks(text):
    """The parts of PTX between labels."""
    return re.split(r"^\$L\w+:", text, flags=re.MULTILINE)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_all_is_in_registers_and_the_inner_loop_arithmetic_on_vector_loads(ptx, name, capability):
    """Or in shared memory, or at 64-bit addresses."""
    instruction, count = VARIANTS[name][4:]
    text = ptx(name, capability)
    reading = (part for part in blocks(text) if re.search(r"ld\.shared|ldmatrix", part))
    loop = max(reading, key=lambda block: len(re.findall(instruction, block)))
    found = len(re.findall(instruction, loop))
    # The compiler may have made one pass out of several.
    assert found and found % count == 0
    passes = found // count
    loads = re.findall(r"ld\.shared\S*", loop)
    if name.startswith("mma"):
        # 64 rows in four times 16, 32 columns in two: fragments as the tensor cores have them.
        assert not loads and len(re.findall(r"ldmatrix\.sync\S+x4\S*", loop)) == 6 * passes
    else:
        rows = 8 if VARIANTS[name][3] != "small" else 4
        assert len(loads) == 2 * rows * passes
        assert all(re.fullmatch(r"ld\.shared\.v(4|2)\.\w(32|64)", load) for load in loads)
    assert "ld.global" not in loop
    assert not re.search(LOCAL, text)
    assert set(re.findall(r"\.extern \.shared \.align (\d+)", text)) == {"16"}
    assert set(re.findall(r"(?:ld|st)\.global[^\[]*\[%([a-z]+)\d+", text)) == {"rd"}
    # Rows times the length of a row.
    assert re.search(r"(mul|mad)\.lo\.s64", text)
    assert ("cp.async.cg.shared.global" in text) == (capability >= (8, 0))
    assert "div.s64" not in text.split("bar.sync")[1]


@pytest.mark.parametrize(
    "name, of, most",
    [("mma", {}, 10), ("mma-stored", {}, 11), ("mma-stored", {"form": ROOT}, 15)],
)
def test_an_activation_is_few_instructions(ptx, name, of, most):
    """From the last product to the first barrier or the end: the terms, the activations and what
    takes them, which is all of storing H, or the first output of H @ W.

    Of PTX, from which ptxas makes about as many for sm_90 (seen in the machine code).
    """
    (text,) = (part for part in ptx(name, HOPPER, **of).split("bar.sync") if "ex2.approx" in part)
    instructions = re.findall(r"^\t\S.*;$", text, re.MULTILINE)
    assert len(re.findall("ex2.approx", text)) == 64
    assert len(instructions) / 64 <= most, len(instructions) / 64


@pytest.mark.parametrize("name", ["mma", "float64"])
@pytest.mark.parametrize("profile", ["multiquadric", "thin-plate", "poly", "sigmoid"])
def test_activations_of_any_profile_are_in_registers(ptx, name, profile):
    assert not re.search(LOCAL, ptx(name, HOPPER, profile=profile))


@pytest.mark.parametrize("name", ["mma-stored", "float32", "mma"])
def test_outputs_stay_in_registers_and_slices_come_by_few_instructions(ptx, name):
    """Stored H never is in shared memory, and of H @ W only what a thread adds to each row."""
    text = ptx(name, HOPPER)
    stores, loads = (set(re.findall(rf"{kind}\.shared\S*", text)) for kind in ("st", "ld"))
    stored = "stored" in name
    assert stores == (set() if stored else {"st.shared.f32"})  # slices come by cp.async
    # Read are the operands of scalar products and, to be summed, what threads have: 16 bytes each.
    assert loads == (set() if stored else {"ld.shared.v4.f32"})
    # Addresses of a slice move on by a constant.
    _, in_loop = (part for part in blocks(text) if "cp.async.cg" in part)
    assert len(re.findall(r"^\t\S.*;$", in_loop, re.MULTILINE)) <= 45
    assert len(re.findall(r"(mul|mad)\.lo\.s64", in_loop)) <= 1


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_machine_code_does_not_spill(ptx, assembled, name, capability):
    shape, bits = tile.SHAPES[VARIANTS[name][3]], int(VARIANTS[name][2][-2:])
    limit = ["--maxrregcount", "128"] if bits == 32 and shape.B == 16 else []
    report = assembled(ptx(name, capability), capability, *limit)
    used = int(re.search(r"Used (\d+) registers", report)[1])
    threads, shared = shape.B**2, tile.shared_bytes(shape)
    assert shared <= 48 << 10
    # Warps to hide latency behind; float64 has twice the registers and less need.
    n_blocks = -(-(12 if bits == 32 and capability > (7, 5) else 6) * 32 // threads)
    assert n_blocks * -(-used // 8) * 8 * threads <= 65_536
    assert n_blocks * (shared + 1024) <= SHARED[capability[:2]] << 10


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize(
    "name, words", [("select", 10), ("gather", 0), ("inner", 16), ("update", 0)]
)
def test_steps_have_room_for_their_threads_and_warps_meet_in_few_instructions(
    steps_ptx, assembled, name, words, capability
):
    """The largest key of a warp is one instruction a word where there is one: of two words and its
    place; elsewhere five. From Python 3.12 on, whose bytecode repeats the ends of loops, a fourth
    more are written down."""
    words += words // 4 * (sys.version_info >= (3, 12))
    text = steps_ptx(name, "float64" if name == "gather" else "float32", capability)
    assert not re.search(LOCAL, text)
    found = len(re.findall(r"redux\.sync\.max\.s32", text))
    exchanged = len(re.findall(r"shfl\.sync", text))
    if capability >= (8, 0):
        assert (found > 0) == (words > 0) and found <= words and not exchanged
    else:
        assert (exchanged > 0) == (words > 0) and exchanged <= 5 * words and not found
    report = assembled(text, capability)
    registers = int(re.search(r"Used (\d+) registers", report)[1])
    shared = int((re.search(r"(\d+) bytes smem", report) or [0, 0])[1])
    assert registers * 512 <= 65_536 and shared <= 48 << 10


@pytest.mark.parametrize("real", ["float32", "float64"])
def test_no_product_of_a_step_is_joined_with_a_sum(steps_ptx, real):
    """What the CPU rounds twice, a product and a sum, is rounded twice.

    ptxas may join `mul` with `add` and `sub`, but no `mul.rn`. Squares of changes may be joined.
    """
    text = steps_ptx("inner", real, HOPPER)
    assert all(a == b for a, b in re.findall(r"fma\.rn\.f64\s+\S+ (%\w+), (%\w+),", text))
    assert re.search(r"mul\.rn\.f64", text)
    sums = set(re.findall(r"%\w+", " ".join(re.findall(r"(?:add|sub)\S*\.f64.*", text))))
    assert not sums & set(re.findall(r"mul\.f64\s+(%\w+),", text))


def test_what_runs_is_what_these_tests_compile(compiled):
    """Without LTO, which would compile again while linking, and what kernels call as well."""
    found = [tile.kernel("dp4a", tile.SHAPES["large"], True, True, 0, 0, 4)]
    for module in (profiles, warps, _cuda_smo_kernels):
        found += [kernel for kernel in vars(module).values() if hasattr(kernel, "targetoptions")]
    assert len(found) > 12 and not any(kernel.targetoptions["lto"] for kernel in found)
    assert found[0].targetoptions["max_registers"] == 128


@pytest.mark.parametrize(
    "text, together",
    [("mma.sync.aligned.m16n8k32;", True), ("cp.async.commit_group;", False), ("ex2;", False)],
)
def test_what_a_warp_does_together_depends_on_no_more_branches(text, together):
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), ()), "f")
    asm(ir.IRBuilder(function.append_basic_block()), text, ir.VoidType(), "", (), True)
    assert ("convergent" in str(function)) == together


def test_a_small_grid_is_no_warning_unless_a_user_wants_one(monkeypatch):
    _cuda_naive_kernels.pairs[1, 64]  # warnings are errors
    monkeypatch.setenv("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "1")
    monkeypatch.setattr(cuda_api.config, "CUDA_LOW_OCCUPANCY_WARNINGS", 1)
    importlib.reload(cuda_api)
    assert cuda_api.config.CUDA_LOW_OCCUPANCY_WARNINGS == 1


def test_a_missing_compiler_is_named_with_what_brings_it(monkeypatch):
    missing = Mock(side_effect=OSError("libnvvm.so: cannot open shared object file"))
    monkeypatch.setitem(sys.modules, "cupy", standin.make()["cupy"])
    monkeypatch.setattr(cuda_api, "find_compiler", missing)
    words = r'libNVVM.*libnvvm\.so.*pip install "\.\[cuda12\]".*\.\[cuda13\].*CUDA_HOME'
    with pytest.raises(BackendUnavailable, match=words):
        numba_cuda.load()


def test_the_compiler_is_looked_for_where_numba_finds_it(compiled):
    cuda_api.find_compiler()


@pytest.mark.parametrize(
    "home, nvcc, found", [("", True, True), ("", False, False), ("mine", True, False)]
)
def test_a_toolkit_is_found_by_its_nvcc(monkeypatch, tmp_path, home, nvcc, found):
    """What numba-cuda does with NVRTC from a wheel and libNVVM in a toolkit alone."""
    toolkit = str(tmp_path)
    path = f"{toolkit}/bin/nvcc" if nvcc else None
    monkeypatch.setattr(cuda_api.shutil, "which", lambda *_, **__: path)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", home)
    if not home:
        monkeypatch.delenv("CUDA_HOME")

    def load():
        if os.environ.get("CUDA_HOME") != toolkit:
            raise OSError("nvrtc found via site-packages, cannot infer CUDA_HOME")

    monkeypatch.setattr(cuda_api, "_load_compiler", load)
    with nullcontext() if found else pytest.raises(OSError, match="cannot infer"):
        cuda_api.find_compiler()
    assert os.environ.get("CUDA_HOME", "") == (toolkit if found else home)


def test_kernels_compile_where_numpy_has_no_row_stack(compiled):
    """As from NumPy 2.5 on, which Numba itself knows; numba-cuda up to 0.30.4 does not."""
    run_python("""
        import numba.np.arrayobj, numpy as np, scipy.linalg
        vars(np).pop('row_stack', None)
        from gpurbf.runtime.jit import cuda_api
        kernel = cuda_api.jit(lambda: None).py_func
        assert cuda_api.cuda.compile_ptx(kernel, (), cc=(9, 0))
        assert not hasattr(np, 'row_stack')
    """)


def test_a_kernel_of_a_device_is_itself_where_a_profile_records():
    """A profile wraps kernels that run without Python's lock; these are launched with a grid."""
    steps = lazy_module("gpurbf.svm._cuda_smo_kernels")
    with Recorder():
        assert steps.select[1, 32].dispatcher is steps.select
