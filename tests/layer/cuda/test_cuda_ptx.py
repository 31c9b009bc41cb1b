"""What the CUDA kernels are compiled to, without a GPU: PTX by NVVM, machine code by ptxas."""

import functools
import importlib.metadata
import re
import subprocess
from functools import partial
from types import SimpleNamespace

import pytest

from gpurbf.layer.backends.cuda.kernels.registers import PITCH

# As numba-cuda compiles for a device: from 9.0 on for its architecture alone.
HOPPER = (9, 0, "a")
CAPABILITIES = [(7, 5), (8, 0), HOPPER, (10, 0, "a")]
# Product, words of the operands, activations, shape, instruction, how often in a pass of the loop.
VARIANTS = {
    "float32": ("multiply", "float32", "float32", "large", r"fma\.rn\.f32", 256),
    "float64": ("multiply", "float64", "float64", "medium", r"fma\.rn\.f64", 128),
    "float32-small": ("multiply", "float32", "float32", "small", r"fma\.rn\.f32", 64),
    "manhattan-float32": ("manhattan", "float32", "float32", "medium", r"abs(\.ftz)?\.f32", 256),
    "manhattan-float64": ("manhattan", "float64", "float64", "medium", r"abs\.f64", 128),
    "dp4a": ("dp4a", "int32", "float32", "large", r"dp4a\.u32\.u32", 256),
    "sad": ("sad", "int32", "float32", "large", r"vabsdiff4\.u32\.u32\.u32\.add", 256),
    "mma": ("mma", "int32", "float32", "large", r"mma\.sync\S+m16n8k32\S+s32\.u8\.u8\.s32", 16),
    "mma-stored": (
        "mma",
        "int32",
        "float32",
        "large",
        r"mma\.sync\S+m16n8k32\S+s32\.u8\.u8\.s32",
        16,
    ),
    "wgmma": (
        "wgmma",
        "int32",
        "float32",
        "large",
        r"wgmma\.mma_async\S+m64n128k32\.s32\.u8\.u8",
        2,
    ),
    "wgmma-stored": ("wgmma", "int32", "float32", "large", r"wgmma\.mma_async\S+m64n128k32", 2),
    "wgmma-float64": ("wgmma", "int32", "float64", "large", r"wgmma\.mma_async\S+m64n128k32", 2),
    "mma-float64": ("mma", "int32", "float64", "large", r"mma\.sync\S+m16n8k32\S+s32\.u8", 16),
}
# Registers, threads and bytes of shared memory of a multiprocessor; a block costs 1 KB more.
MULTIPROCESSORS = {
    (7, 5): (65_536, 1024, 64 << 10),
    (8, 0): (65_536, 2048, 164 << 10),
    (9, 0): (65_536, 2048, 228 << 10),
    (10, 0): (65_536, 2048, 228 << 10),
}


def sm(capability):
    """The name of an architecture."""
    return "sm_" + "".join(map(str, capability))


@pytest.fixture(scope="module")
def numba_cuda():
    """numba.cuda with a compiler, whatever GPU there is."""
    pytest.importorskip("numba_cuda", reason="PTX: needs numba-cuda, which the extra `test` brings")
    from gpurbf.runtime.jit import cuda_api

    if cuda_api.SIMULATED:
        pytest.skip("PTX: Numba's simulator compiles nothing")
    try:
        cuda_api.cuda.compile_ptx(lambda: None, (), cc=(9, 0))
    except Exception as error:
        reason = str(error).strip().splitlines() or [repr(error)]
        pytest.skip(f"PTX: numba.cuda has no compiler here ({reason[0]}); the extra `test` has one")
    return cuda_api.cuda


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
        term = types.int32 if (word, real) == (types.int32, types.float32) else real
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
        if name.startswith("wgmma") and capability != HOPPER:
            pytest.skip("wgmma: is of compute capability 9.0")
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
    reading = (part for part in blocks(text) if re.search(r"ld\.shared|ldmatrix|wgmma", part))
    loop = max(reading, key=lambda block: len(re.findall(instruction, block)))
    found = len(re.findall(instruction, loop))
    # The compiler may have made one pass out of several.
    assert found and found % count == 0
    passes = found // count
    loads = re.findall(r"ld\.shared\S*", loop)
    if name.startswith("mma"):
        # 64 rows in four times 16, 32 columns in two: fragments as the tensor cores have them.
        assert not loads and len(re.findall(r"ldmatrix\.sync\S+x4\S*", loop)) == 6 * passes
    elif name.startswith("wgmma"):
        assert not loads  # the tensor cores read for themselves
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
    assert ("fence.proxy.async" in text) == name.startswith("wgmma")
    assert not re.search(r"\b(ld|st)\.local|__local_depot|\bcall\b", text)
    assert set(re.findall(r"\.extern \.shared \.align (\d+)", text)) == {"16"}
    addresses = re.findall(r"(?:ld|st)\.global[^\[]*\[%([a-z]+)\d+", text)
    assert addresses and set(addresses) == {"rd"}
    # Rows times the length of a row.
    assert re.search(r"(mul|mad)\.lo\.s64", text)
    assert ("cp.async.cg.shared.global" in text) == (capability >= (8, 0))
    assert "div.s64" not in text.split("bar.sync")[1]


@pytest.mark.parametrize(
    "name, most",
    [("mma", 10), ("mma-stored", 11), ("mma-stored-root", 15), ("wgmma", 12), ("wgmma-stored", 13)],
)
def test_an_activation_is_few_instructions(ptx, name, most):
    """From the last product to the first barrier or the end: the terms, the activations and what
    takes them, which is both ways to store H, of which one is taken, or the first output of H @ W.

    Of PTX, from which ptxas makes about as many for sm_90 (seen in the machine code).
    """
    (text,) = (part for part in ptx(name, HOPPER).split("bar.sync") if "ex2.approx" in part)
    instructions = re.findall(r"^\t\S.*;$", text, re.MULTILINE)
    activations = len(re.findall("ex2.approx", text))
    assert activations == 64
    assert len(instructions) / activations <= most


@pytest.mark.parametrize("name", ["mma", "float64"])
@pytest.mark.parametrize("profile", ["multiquadric", "thin-plate", "poly", "sigmoid"])
def test_activations_of_any_profile_are_in_registers(ptx, name, profile):
    assert not re.search(
        r"\b(ld|st)\.local|__local_depot|\bcall\b", ptx(f"{name}+{profile}", HOPPER)
    )


@pytest.mark.parametrize("name", ["mma-stored", "wgmma-stored", "float32", "mma", "wgmma"])
def test_outputs_do_not_leave_their_registers(ptx, name):
    """Stored H never is in shared memory, and of H @ W only what a thread adds to each row."""
    text = ptx(name, HOPPER)
    stores = re.findall(r"st\.shared\S*", text)  # slices come by cp.async
    assert stores == ["st.shared.f32"] * (0 if "stored" in name else 2 if name == "wgmma" else 8)
    # Read are the operands of scalar products and, to be summed, what threads have: 16 bytes each.
    loads = set(re.findall(r"ld\.shared\S*", text))
    assert loads == (set() if "stored" in name else {"ld.shared.v4.f32"})


@pytest.mark.parametrize("name", ["mma", "wgmma", "float32"])
def test_a_slice_is_brought_by_few_instructions(ptx, name):
    """Addresses move on by a constant; rows further down are a product away that is made once."""
    _, in_loop = (part for part in blocks(ptx(name, HOPPER)) if "cp.async.cg" in part)
    assert len(re.findall(r"^\t\S.*;$", in_loop, re.MULTILINE)) <= 45
    assert len(re.findall(r"(mul|mad)\.lo\.s64", in_loop)) <= 1


@pytest.mark.parametrize("name, most", [("mma", 100), ("wgmma", 110)])
def test_an_output_of_a_product_with_weights_is_little_but_its_64_sums(ptx, name, most):
    loops = [part for part in blocks(ptx(name, HOPPER)) if "fma.rn.f32" in part]
    instructions = [re.findall(r"^\t\S.*;$", part, re.MULTILINE) for part in loops]
    assert all(part.count("fma.rn.f32") == 64 for part in loops) and len(loops) == 1
    assert len(instructions[0]) <= most


@pytest.fixture(scope="module")
def ptxas():
    """The path of ptxas, as new as the NVVM that chose the version of the PTX."""
    for package in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name in ("ptxas", "ptxas.exe"):
                return str(file.locate())
    pytest.skip("ptxas: no nvidia-cuda-nvcc wheel; the extra `test` has one")


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_machine_code_does_not_spill(ptx, ptxas, tmp_path, name, capability):
    from gpurbf.layer.backends.cuda.kernels import tile

    shape, bits = tile.SHAPES[VARIANTS[name][3]], int(VARIANTS[name][2][-2:])
    limit = ["--maxrregcount", "128"] if bits == 32 and shape.B == 16 else []
    source = tmp_path / "tile.ptx"
    source.write_text(ptx(name, capability))
    architecture = f"-arch={sm(capability)}"
    done = subprocess.run(
        [ptxas, "-v", architecture, *limit, str(source), "-o", str(tmp_path / "tile.cubin")],
        capture_output=True,
        text=True,
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    assert "serialized" not in report  # a warning of ptxas about wgmma
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
    used = int(re.search(r"Used (\d+) registers", report)[1])
    threads, shared = shape.B**2, tile.shared_bytes(VARIANTS[name][0], shape)
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


@pytest.mark.parametrize("real", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("samples", ["uint8", "float32", "float64"])
def test_the_other_kernels_compile_with_64_bit_addresses(numba_cuda, monkeypatch, samples, real):
    """Rows are packed as 8-bit codes too, with terms that are integers."""
    from numba import types
    from numba.cuda import dispatcher

    from benchmarks import _cuda_naive_kernels
    from gpurbf.layer.backends.cuda.kernels import pack

    samples, real = getattr(types, samples), getattr(types, real)
    X, H = (types.Array(kind, 2, "C") for kind in (samples, real))
    term = types.int32 if real == types.uint8 else real
    terms, shift = types.Array(term, 1, "C"), types.Array(types.float64, 1, "C")
    number, integer = types.float64, types.int64
    scalars = integer, integer, number, number, integer
    signatures = {
        pack.pack: (X, shift, number, number, number, H, terms),
        _cuda_naive_kernels.pairs: (X, X, integer, *scalars, H),
    }
    if real == types.uint8:
        del signatures[_cuda_naive_kernels.pairs]
    device = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    for kernel, signature in signatures.items():
        text, _ = numba_cuda.compile_ptx(kernel.py_func, signature, cc=HOPPER)
        assert not re.search(r"\b(ld|st)\.local|__local_depot", text)
        assert set(re.findall(r"(?:ld|st)\.global[^\[]*\[%([a-z]+)\d+", text)) == {"rd"}


def test_what_runs_is_what_these_tests_compile(numba_cuda):
    """Without LTO, which would compile again while linking, and what kernels call as well."""
    from gpurbf.layer.backends.cuda.kernels import pack, profiles, tile, warps, wgmma
    from gpurbf.svm import _cuda_smo_kernels

    consumer = tile.Consumer(tile.STORE, 0, 0, 4)
    found = [tile.kernel("dp4a", tile.SHAPES["large"], True, consumer, 128)]
    for module in (pack, profiles, warps, _cuda_smo_kernels):
        found += [kernel for kernel in vars(module).values() if hasattr(kernel, "targetoptions")]
    found += wgmma.placing(tile.SHAPES["large"])
    assert len(found) > 15 and not any(kernel.targetoptions["lto"] for kernel in found)
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
