"""The micro-kernels: what is packed for them, sums with weights, and their code."""

import re
from itertools import pairwise

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir
from numba import njit

from gpurbf.layer.backends.numba import cpu_kernel, matvec_kernels, microkernel_table, packing
from gpurbf.layer.backends.numba.matvec import GroupedWeights, times
from gpurbf.layer.backends.numba.microkernels import (
    AVX2,
    AVXVNNI,
    BLOCK,
    DOTPROD,
    I8MM,
    KINDS,
    LANES,
    OPERATIONS,
)
from gpurbf.profiling import machine
from gpurbf.runtime import cpu
from gpurbf.runtime.jit.llvm import call_at, pointer_to


def runnable(name):
    """Whether this machine has the vectors that a kernel is named after."""
    suffix = name.split("_")[1]
    features = {name: own.features for name, own in cpu_kernel.KERNELS.items()}
    features["avx512"] = features["avx512vnni"] - {"avx512vnni"}
    features["neon"] = features["dotprod"]
    return features[suffix] <= cpu.cpu_features()


def each_kernel(names):
    """A mark of tests of kernels by name; those that the CPU cannot run are skipped."""
    lacking = pytest.mark.skip(reason="the CPU lacks its instructions")
    kernels = [pytest.param(name, marks=[] if runnable(name) else lacking) for name in names]
    return pytest.mark.parametrize("name", kernels)


def pack(X, shift, rows, group, panels, lines):
    """`packing.pack` of all rows of X; the sums of its rows and of their squares."""
    sums = []
    for coefficients in ((0, 1, 0), (1, 0, 0)):
        given = shift, coefficients, rows, lines.shape[1], group, panels.dtype, shift.dtype
        how, terms = packing.packing_of(*given), np.empty(len(X), shift.dtype)
        addresses = [a.ctypes.data for a in (how.shift, how.sizes, lines, panels, terms)]
        call_packing(how.address(X.dtype), X.ctypes.data, len(X), *addresses)
        sums.append(terms)
    return sums


@njit
def call_packing(function, X, count, shift, own, lines, panels, terms):
    call_at(function, X, 0, shift, own, count, lines, panels, terms)


def beside(size, other, dtype=np.float64):
    """Arrays of these sizes in one piece of memory, in either order and with several gaps."""
    for gap in (0, 1, 2, 8, 2000):
        both = np.zeros(size + gap + other, dtype)
        yield both[:size], both[size + gap :]
        yield both[other + gap :], both[:other]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [4, 8, 20, 33])
@pytest.mark.parametrize("rows", [4, 16])
def test_sums_of_packed_rows_are_the_same_anywhere_in_memory(n, rows, dtype):
    """Next to the scratch rows, LLVM's tests for arrays that overlap may take them for such."""
    rng = np.random.default_rng(0)
    values, shift = rng.standard_normal((11, n)).astype(dtype), rng.random(n).astype(dtype)
    width = microkernel_table.padded(n, 16)
    seen = set()
    for X, lines in beside(11 * n, 4 * width, dtype):
        X, lines = X.reshape(11, n), lines.reshape(4, width)
        X[:] = values
        panels = np.zeros(microkernel_table.padded(11, rows) * width, dtype)
        sums, squares = pack(X, shift, rows, 1, panels, lines)
        seen.add(sums.tobytes() + squares.tobytes() + panels.tobytes())
    assert len(seen) == 1


@njit
def _collect(sums, columns, out):
    k = len(columns)
    given = pointer_to(columns, 0), k, pointer_to(out, 0), k
    matvec_kernels.collect(pointer_to(sums, 0), len(out), k * matvec_kernels.PARTS, *given)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_partial_sums_add_up_to_the_same_anywhere_in_memory(k):
    rng = np.random.default_rng(0)
    values, before = rng.standard_normal((5, k, matvec_kernels.PARTS)), rng.random((5, k))
    seen = set()
    for parts, out in beside(values.size, 5 * k):
        parts, out = parts.reshape(values.shape), out.reshape(5, k)
        parts[:], out[:] = values, before
        _collect(parts, np.arange(k), out)
        seen.add(out.tobytes())
    assert len(seen) == 1
    np.testing.assert_allclose(out, before + values.sum(axis=2), atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3, 10, 15])
@pytest.mark.parametrize("m", [40, 256, 5000])
def test_few_outputs_of_float32_activations_are_summed_in_float64(m, k):
    """A float32 sum of that many terms of one sign would be off by a thousand times as much."""
    rng = np.random.default_rng(0)
    H, W = rng.random((30, m), np.float32), rng.random((m, k))
    S = np.empty((30, k))
    times(W, np.float32)(H, S)
    np.testing.assert_allclose(S, H.astype(float) @ W, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [[700], [1, 1, 1], [8, 16, 250], [300, 5, 0, 3, 511, 2, 9, 1000]])
@pytest.mark.parametrize("own", [1, 2, 9, 17])
def test_groups_of_centers_have_weights_for_their_own_outputs(sizes, own, dtype):
    """As support vectors, which are in the pairs of their own class."""
    rng = np.random.default_rng(0)
    H, W = rng.random((30, sum(sizes))).astype(dtype), np.zeros((sum(sizes), 45))
    groups = []
    for size, start in zip(sizes, np.cumsum(sizes) - sizes):
        columns = np.sort(rng.permutation(45)[:own])
        V = rng.standard_normal((size, own))
        W[start : start + size, columns] = V
        groups += [(start, V, columns)] if size else []
    S = np.empty((30, 45), dtype)
    times(GroupedWeights(groups, 45), dtype)(H, S)
    tol = 1e-12 if dtype == np.float64 else 1e-6
    np.testing.assert_allclose(S, H.astype(float) @ W, rtol=tol, atol=tol)


@each_kernel(name for name in KINDS if re.match("(dot|manhattan)(32|64)", name))
def test_sums_of_floats_go_on_where_they_ended(name):
    """With the same bits, if the calls end where runs of float32 sums do."""
    kind, rng = KINDS[name], np.random.default_rng(0)
    dtype = np.dtype(OPERATIONS[kind.operation].c)
    x, c = (packing.aligned((n * 300,), dtype) for n in (kind.rows, kind.panels * LANES))
    x[:], c[:] = (rng.standard_normal(len(a)) for a in (x, c))
    places = np.arange(300, dtype=np.int32) * kind.rows * dtype.itemsize
    step = LANES * dtype.itemsize

    def sums(*ends):
        out = np.full((kind.rows, BLOCK), np.nan, dtype)
        for begun, end in pairwise([0, *ends]):
            rows = x.ctypes.data, places[begun:].ctypes.data
            centers = c.ctypes.data + begun * step, 300 * step
            kernel = microkernel_table.compiled(name).ctypes
            kernel(*rows, *centers, end - begun, out.ctypes.data, begun)
        return out[:, : kind.panels * LANES]

    np.testing.assert_array_equal(sums(128, 256, 300), sums(300))


@pytest.mark.parametrize("name", KINDS | matvec_kernels.KINDS)
def test_kernels_for_lesser_cpus_are_compiled_for_those(name):
    target = (KINDS | matvec_kernels.KINDS)[name].target
    arm = {"neon": DOTPROD, "dotprod": DOTPROD, "i8mm": I8MM}
    assert target == ({"avx2": AVX2, "avxvnni": AVXVNNI} | arm).get(name.split("_")[1])


INNER = {
    "dot_avx512vnni": r"vpdpbusd\s+%zmm\d+, %zmm\d+, %zmm",
    "dot_avxvnni": r"vpdpbusd\s+%ymm\d+, %ymm\d+, %ymm",
    "dot_avx2": r"vpmaddwd\s+%ymm\d+, %ymm\d+, %ymm",
    "manhattan_avx512": r"vpsadbw\s+%zmm\d+, %zmm\d+, %zmm",
    "manhattan_avx2": r"vpsadbw\s+%ymm\d+, %ymm\d+, %ymm",
    "gram16_avx512vnni": r"vpdpwssd\s.*%zmm",
    "gram16_avxvnni": r"vpdpwssd\s.*%ymm",
    "gram16_avx2": r"vpmaddwd\s+%ymm\d+, %ymm\d+, %ymm",
}
for cpu_name, vectors in (("avx512", "zmm"), ("avx2", "ymm")):
    for numbers, names in (("ps", "dot32 gram32 score32"), ("pd", "partial32 partial64 single32")):
        fused = rf"vfmadd\w+{numbers}\s.*%{vectors}"
        INNER |= {f"{name}_{cpu_name}": fused for name in names.split()}


@each_kernel(INNER)
def test_inner_loop_is_the_instruction_meant_and_spills_nothing(name):
    from numba import cfunc

    # Code that comes from the disk cache cannot be inspected.
    function = microkernel_table._function(name)
    assembly = cfunc(microkernel_table.signature(function))(function)._library.get_asm_str()
    kind = (KINDS | matvec_kernels.KINDS)[name]
    lanes = matvec_kernels.PARTS if name in matvec_kernels.KINDS else LANES
    vectors = kind.rows * kind.panels * lanes // kind.width
    assert len(re.findall(INNER[name], assembly)) >= vectors
    assert not re.findall(r"%[xyz]mm\d+, -?\d*\(%rsp\)", assembly)


def written(name):
    """The LLVM code of the kernel alone, as the builder writes it."""
    kind = (KINDS | matvec_kernels.KINDS)[name]
    module, word = ir.Module(), ir.IntType(64)
    arguments = [word] * (7 if kind.listed and name in KINDS else 6)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    builder = ir.IRBuilder(function.append_basic_block())
    microkernel_table.write(builder, name, *function.args)
    builder.ret_void()
    return str(module)


# Instructions of ARM's kernels; rows by lane need none to copy them.
ARM = {
    "dot_i8mm": r"ummla\s+v\d+\.4s, v\d+\.16b, v\d+\.16b",
    "dot_dotprod": r"udot\s+v\d+\.4s, v\d+\.16b, v\d+\.4b\[\d\]",
    "manhattan_neon": r"uabd\s+v\d+\.16b",
    "gram16_neon": r"smlal\s+v\d+\.4s, v\d+\.4h, v\d+\.h\[\d\]",
}
for bits, lanes in (("32", "4s"), ("64", "2d")):
    by_lane = rf"fmla\s+v\d+\.{lanes}, v\d+\.{lanes}, v\d+\.{lanes[1]}\[\d\]"
    ARM |= {f"{name}{bits}_neon": by_lane for name in ("dot", "gram", "score")}
    ARM |= {f"{name}{bits}_neon": r"fmla\s+v\d+\.2d" for name in ("partial", "single")}
    ARM[f"manhattan{bits}_neon"] = rf"fabd\s+v\d+\.{lanes}"


def arm_loops(text):
    """The loops of LLVM code, optimized and compiled for ARM on whatever CPU this is."""
    try:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple("aarch64-linux-gnu")
    except RuntimeError:
        pytest.skip("LLVM was built without ARM")
    machine = target.create_target_machine(opt=3)
    module = llvm.parse_assembly(re.sub("(?m)^target .*", "", text))
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(module, passes)
    assembly = machine.emit_assembly(module)
    labels = [*re.finditer(r"^(\.LBB\d+_\d+):\n", assembly, re.MULTILINE)]
    ends = ((at, re.search(rf"\bb\.\w+\s+{re.escape(at[1])}\n", assembly)) for at in labels)
    return [assembly[at.end() : end.start()] for at, end in ends if end]


@pytest.mark.parametrize("name", ARM)
def test_on_arm_the_inner_loop_is_the_instruction_meant_and_spills_nothing(name):
    loops = arm_loops(written(name))
    inner = max(loops, key=lambda loop: len(re.findall(ARM[name], loop)))
    kind = (KINDS | matvec_kernels.KINDS)[name]
    lanes = matvec_kernels.PARTS if name in matvec_kernels.KINDS else LANES
    sums = kind.rows * kind.panels * lanes // (kind.width * OPERATIONS[kind.operation].rows)
    assert len(re.findall(ARM[name], inner)) == sums * (2 if name == "gram16_neon" else 1)
    if name in KINDS and kind.ld1x4:
        assert re.search(r"ld1\s+{ v\d+\.4s, v\d+\.4s, v\d+\.4s, v\d+\.4s }", inner)
    assert "[sp" not in inner


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("dot_avx512vnni", {"phi": 28, "load": 15, "call": 24, "insertelement": 12}),
        ("dot32_avx2", {"phi": 16, "load": 9, "call": 12, "insertelement": 6}),
    ],
)
def test_x86_kernels_are_written_as_before_those_for_arm(name, steps):
    loop = re.search(r'^"?step"?:\n(.*?)^"?\w+"?:$', written(name), re.DOTALL | re.MULTILINE)[1]
    assert {kind: len(re.findall(rf"\b{kind}\b", loop)) for kind in steps} == steps


@each_kernel(name for name in INNER if name.startswith(("dot", "manhattan", "gram16")))
def test_the_limit_of_the_hardware_can_be_measured(name, monkeypatch):
    monkeypatch.setattr(machine, "_PEAK_SECONDS", 1e-3)
    monkeypatch.setattr(machine, "_PEAK_RUNS", 2)
    assert machine.peak(name) > 0
