"""What the CUDA kernels are compiled to, without a GPU: PTX by NVVM, machine code by ptxas."""

import functools
import re
from functools import partial
from types import SimpleNamespace

import pytest

from gpurbf.layer.backends.cuda.kernels.registers import PITCH
from tests.layer.cuda.conftest import sm

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
# Registers, threads and bytes of shared memory of a multiprocessor; a block costs 1 KB more.
MULTIPROCESSORS = {
    (7, 5): (65_536, 1024, 64 << 10),
    (8, 0): (65_536, 2048, 164 << 10),
    (9, 0): (65_536, 2048, 228 << 10),
    (10, 0): (65_536, 2048, 228 << 10),
}


LOCAL = r"\b(ld|st)\.local|__local_depot|\bcall\b"


@pytest.fixture(scope="module")
def ptx(numba_cuda):
    """A function that compiles a variant for a compute capability, once."""
    from numba import types
    from numba.cuda import dispatcher

    from gpurbf.layer.activation import FORMS, Epilogue
    from gpurbf.layer.backends.cuda.kernels import tile
    from gpurbf.layer.backends.cuda.kernels.profiles import NUMBERS

    def build(name, capability):
        name, _, profile = name.partition("+")
        product, word, real, shape, *_ = VARIANTS[name.removesuffix("-root")]
        word, real = getattr(types, word), getattr(types, real)
        term = types.int32 if word == types.int32 else real
        vector, matrix, cube = (partial(types.Array, ndim=n, layout="C") for n in (1, 2, 3))
        number, integer = types.float64, types.int64
        fields = [integer, number, integer, integer, number, number, integer]
        signature = (
            matrix(word), matrix(word), vector(term), vector(term),
            types.NamedTuple(fields, Epilogue), matrix(real), matrix(real), cube(number),
        )  # fmt: skip
        form = FORMS["squared" if product == "multiply" else "dot"]
        form = FORMS["root"] if name.endswith("-root") else form
        mode = tile.STORE if "-stored" in name else tile.SCORES
        number = NUMBERS[profile or "gaussian"]
        consumer = tile.Consumer(mode, form, number, real.bitwidth // 8)
        kernel = tile.kernel(product, tile.SHAPES[shape], capability[:2] >= (8, 0), consumer)
        with pytest.MonkeyPatch.context() as patch:
            # Numba asks the device for the capability of functions that a kernel calls.
            device = SimpleNamespace(compute_capability=capability[:2])
            patch.setattr(dispatcher, "get_current_device", lambda: device)
            return numba_cuda.compile_ptx(kernel.py_func, signature, cc=capability)[0]

    cached = functools.cache(build)

    def compiled(name, capability):
        if capability < (8, 0) and name.startswith("mma"):
            pytest.skip("mma: needs compute capability 8.0")
        text = cached(name, capability)
        target = sm(capability)
        if capability >= (10, 0) and f".target {target}" not in text:
            pytest.skip(f"{target}: newer than this numba.cuda or its toolkit")
        return text

    return compiled


def blocks(text):
    """The parts of PTX between labels."""
    return re.split(r"^\$L\w+:", text, flags=re.MULTILINE)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_inner_loop_is_arithmetic_on_vector_loads(ptx, name, capability):
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


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_everything_is_in_registers_shared_memory_or_64_bit_addresses(ptx, name, capability):
    text = ptx(name, capability)
    assert f".target {sm(capability)}\n" in text
    assert not re.search(LOCAL, text)
    assert set(re.findall(r"\.extern \.shared \.align (\d+)", text)) == {"16"}
    addresses = re.findall(r"(?:ld|st)\.global[^\[]*\[%([a-z]+)\d+", text)
    assert addresses and set(addresses) == {"rd"}
    # Rows times the length of a row.
    assert re.search(r"(mul|mad)\.lo\.s64", text)
    assert ("cp.async.cg.shared.global" in text) == (capability >= (8, 0))
    assert "div.s64" not in text.split("bar.sync")[1]


@pytest.mark.parametrize("name, most", [("mma", 10), ("mma-stored", 11), ("mma-stored-root", 15)])
def test_an_activation_is_few_instructions(ptx, name, most):
    """From the last product to the first barrier or the end: the terms, the activations and what
    takes them, which is all of storing H, or the first output of H @ W.

    Of PTX, from which ptxas makes about as many for sm_90 (seen in the machine code).
    """
    (text,) = (part for part in ptx(name, HOPPER).split("bar.sync") if "ex2.approx" in part)
    instructions = re.findall(r"^\t\S.*;$", text, re.MULTILINE)
    assert len(re.findall("ex2.approx", text)) == 64
    assert len(instructions) / 64 <= most, len(instructions) / 64


@pytest.mark.parametrize("name", ["mma", "float64"])
@pytest.mark.parametrize("profile", ["multiquadric", "thin-plate", "poly", "sigmoid"])
def test_activations_of_any_profile_are_in_registers(ptx, name, profile):
    assert not re.search(LOCAL, ptx(f"{name}+{profile}", HOPPER))


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
    from gpurbf.layer.backends.cuda.kernels import tile

    shape, bits = tile.SHAPES[VARIANTS[name][3]], int(VARIANTS[name][2][-2:])
    limit = ["--maxrregcount", "128"] if bits == 32 and shape.B == 16 else []
    report = assembled(ptx(name, capability), capability, *limit)
    used = int(re.search(r"Used (\d+) registers", report)[1])
    threads, shared = shape.B**2, tile.shared_bytes(shape)
    registers, most, memory = MULTIPROCESSORS[capability[:2]]
    resident = min(
        registers // (-(-used // 8) * 8 * threads), most // threads, memory // (shared + 1024), 32
    )
    print(
        f"{name}, {sm(capability)}: {used} registers, {shared} bytes shared, "
        f"{resident} blocks of {threads} threads, occupancy {resident * threads / most:.0%}"
    )
    assert shared <= 48 << 10
    assert PITCH * 4 * shape.M <= shared
    # Warps to hide latency behind; float64 has twice the registers and less need.
    least = 12 if bits == 32 and capability > (7, 5) else 6
    assert resident * threads // 32 >= least


@pytest.mark.parametrize("real", ["float32", "float64"])
def test_the_baseline_compiles_with_64_bit_addresses(numba_cuda, monkeypatch, real):
    from numba import types
    from numba.cuda import dispatcher

    from benchmarks import _cuda_naive_kernels

    X = types.Array(getattr(types, real), 2, "C")
    number, integer = types.float64, types.int64
    scalars = integer, integer, integer, number, number, integer
    device = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    kernel = _cuda_naive_kernels.pairs.py_func
    text, _ = numba_cuda.compile_ptx(kernel, (X, X, *scalars, X), cc=HOPPER)
    assert not re.search(r"\b(ld|st)\.local|__local_depot", text)
    assert set(re.findall(r"(?:ld|st)\.global[^\[]*\[%([a-z]+)\d+", text)) == {"rd"}


def test_what_runs_is_what_these_tests_compile(numba_cuda):
    """Without LTO, which would compile again while linking, and what kernels call as well."""
    from gpurbf.layer.backends.cuda.kernels import profiles, tile, warps
    from gpurbf.svm import _cuda_smo_kernels

    consumer = tile.Consumer(tile.STORE, 0, 0, 4)
    found = [tile.kernel("dp4a", tile.SHAPES["large"], True, consumer, 128)]
    for module in (profiles, warps, _cuda_smo_kernels):
        found += [kernel for kernel in vars(module).values() if hasattr(kernel, "targetoptions")]
    assert len(found) > 12 and not any(kernel.targetoptions["lto"] for kernel in found)
    assert found[0].targetoptions["max_registers"] == 128


@pytest.mark.parametrize(
    "text, together",
    [("mma.sync.aligned.m16n8k32;", True), ("cp.async.commit_group;", False), ("ex2;", False)],
)
def test_what_a_warp_does_together_depends_on_no_more_branches(text, together):
    from llvmlite import ir

    from gpurbf.layer.backends.cuda.kernels.registers import asm

    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), ()), "f")
    asm(ir.IRBuilder(function.append_basic_block()), text, ir.VoidType(), "", (), True)
    assert ("convergent" in str(function)) == together
