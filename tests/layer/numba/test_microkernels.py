"""The micro-kernels: what is packed for them, sums with weights, and their code."""

import re

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir
from numba import njit

from gpurbf.layer.backends.numba import matvec_kernels, microkernel_table, packing
from gpurbf.layer.backends.numba.matvec import GroupedWeights, times
from gpurbf.layer.backends.numba.microkernels import AVX2, AVXVNNI, DOTPROD, I8MM, LANES, OPERATIONS
from gpurbf.layer.backends.numba.microkernels import KINDS as OF_TILES
from gpurbf.profiling import machine
from gpurbf.runtime.jit.llvm import address, call_at, pointer

KINDS = OF_TILES | matvec_kernels.KINDS


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
    given = pointer(address(columns), columns), k, pointer(address(out), out), k
    first = pointer(address(sums), sums)
    matvec_kernels.collect(first, len(out), k * matvec_kernels.PARTS, *given)


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


@pytest.mark.parametrize("sizes", [[700], [1, 1, 1], [8, 16, 250], [300, 4, 0, 3, 511, 2, 9, 1000]])
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
        groups.append((start, V, columns))
    S = np.empty((30, 45), dtype)
    times(GroupedWeights(groups, 45), dtype)(H, S)
    tol = 1e-12 if dtype == np.float64 else 1e-6
    np.testing.assert_allclose(S, H.astype(float) @ W, rtol=tol, atol=tol)


@pytest.mark.parametrize("name", KINDS)
def test_kernels_for_lesser_cpus_are_compiled_for_those(name):
    target = KINDS[name].target
    arm = {"neon": DOTPROD, "dotprod": DOTPROD, "i8mm": I8MM}
    assert target == ({"avx2": AVX2, "avxvnni": AVXVNNI} | arm).get(name.split("_")[1])


# Instructions of x86's kernels, and of ARM's, where rows by lane need none to copy them.
X86 = {
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
        X86 |= {f"{name}_{cpu_name}": fused for name in names.split()}
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


def written(name):
    """The LLVM code of the kernel alone, as the builder writes it."""
    kind = KINDS[name]
    module, word = ir.Module(), ir.IntType(64)
    arguments = [word] * (7 if kind.listed else 6)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    builder = ir.IRBuilder(function.append_basic_block())
    microkernel_table.write(builder, name, *function.args)
    builder.ret_void()
    return str(module)


def inner_loop(text, meant, arm):
    """The loop with most of the instructions meant, on ARM or on x86, of LLVM code.

    It is optimized and compiled on whatever CPU this is. Code for no named CPU of x86 is for one
    with AVX-512.
    """
    triple, cpu = ("aarch64-linux-gnu", "") if arm else ("x86_64-linux-gnu", "icelake-server")
    try:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"LLVM was built without {triple}")
    machine = target.create_target_machine(cpu=cpu, opt=3)
    module = llvm.parse_assembly(re.sub("(?m)^target .*", "", text))
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(module, passes)
    assembly = machine.emit_assembly(module)
    labels = [*re.finditer(r"^(\.LBB\d+_\d+):.*\n", assembly, re.MULTILINE)]
    jump = r"\b(?:b\.|j)\w+\s+"
    ends = ((at, re.search(jump + re.escape(at[1]) + "\n", assembly)) for at in labels)
    loops = [assembly[at.end() : end.start()] for at, end in ends if end]
    return max(loops, key=lambda loop: len(re.findall(meant, loop)))


@pytest.mark.parametrize("name", X86 | ARM)
def test_the_inner_loop_is_the_instruction_meant_and_spills_nothing(name):
    meant, kind = (X86 | ARM)[name], KINDS[name]
    inner = inner_loop(written(name), meant, name in ARM)
    lanes = matvec_kernels.PARTS if name in matvec_kernels.KINDS else LANES
    sums = kind.rows * kind.panels * lanes // (kind.width * kind.operation.rows)
    sums *= 2 if name == "gram16_neon" else 1  # products of pairs
    # LLVM takes two steps of a short loop at a time.
    assert len(re.findall(meant, inner)) in (sums, 2 * sums)
    if kind.ld1x4:
        assert re.search(r"ld1\s+{ v\d+\.4s, v\d+\.4s, v\d+\.4s, v\d+\.4s }", inner)
    assert not re.search(r"\[sp|\(%rsp", inner)


@pytest.mark.parametrize("arithmetic", {kind.arithmetic: kind for kind in OPERATIONS.values()})
def test_the_limit_of_the_hardware_can_be_measured(kernel, arithmetic, monkeypatch):
    if kernel == "generic":
        pytest.skip("its kernels have no loop of that kind")
    monkeypatch.setattr(machine, "_PEAK_SECONDS", 1e-3)
    monkeypatch.setattr(machine, "_PEAK_RUNS", 2)
    assert machine.compute.__wrapped__(arithmetic) > 0
