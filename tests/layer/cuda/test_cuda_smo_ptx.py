"""What the kernels of SVC's steps are compiled to, without a GPU."""

import functools
import importlib
import re
import subprocess
from functools import partial
from types import SimpleNamespace

import pytest
from test_cuda_ptx import CAPABILITIES, HOPPER, numba_cuda, ptxas, sm  # noqa: F401

KERNELS = ("select", "gather", "inner", "update")


@pytest.fixture(scope="module")
def ptx(numba_cuda):  # noqa: F811
    """A function that compiles a kernel for K in float32 or float64 and a capability, once."""
    from numba import types
    from numba.cuda import dispatcher

    from gpurbf.layer.backends.cuda.kernels import warps
    from gpurbf.svm import _cuda_smo_kernels

    def build(name, real, capability):
        # Functions that kernels call are compiled once, for the GPU of the first.
        for module in (warps, _cuda_smo_kernels):
            importlib.reload(module)
        vector, matrix, cube = (partial(types.Array, ndim=n, layout="C") for n in (1, 2, 3))
        number, integer, short = types.float64, types.int64, types.int32
        real = getattr(types, real)

        def group(kind, *members):
            return types.NamedTuple(members, kind)

        numbers, integers = vector(number), vector(integer)
        pairs = group(
            _cuda_smo_kernels.Pairs,
            integers,
            integers,
            numbers,
            numbers,
            numbers,
            integers,
            integers,
        )
        sets = group(_cuda_smo_kernels.Sets, matrix(short), vector(short))
        values = group(_cuda_smo_kernels.Values, matrix(real), vector(short), numbers)
        blocks = group(_cuda_smo_kernels.Blocks, cube(real), matrix(number), matrix(number))
        rules = group(
            _cuda_smo_kernels.Rules, number, integer, integer, number, number, integer, number
        )
        wave, progress = vector(short), matrix(number)
        signature = {
            "select": (wave, pairs, sets, progress, rules),
            "gather": (wave, pairs, sets, values, blocks, progress),
            "inner": (wave, pairs, sets, blocks, progress, rules),
            "update": (wave, pairs, sets, values, blocks, progress),
        }[name]
        with pytest.MonkeyPatch.context() as patch:
            device = SimpleNamespace(compute_capability=capability[:2])
            patch.setattr(dispatcher, "get_current_device", lambda: device)
            kernel = getattr(_cuda_smo_kernels, name).py_func
            return numba_cuda.compile_ptx(kernel, signature, cc=capability)[0]

    cached = functools.cache(build)

    def compiled(name, real, capability):
        text, target = cached(name, real, capability), sm(capability)
        if capability >= (10, 0) and f".target {target}" not in text:
            pytest.skip(f"{target}: newer than this numba.cuda or its toolkit")
        return text

    return compiled


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_need_no_local_memory_and_have_room_for_their_threads(
    ptx,
    ptxas,  # noqa: F811
    tmp_path,
    name,
    capability,
):
    text = ptx(name, "float64" if name == "gather" else "float32", capability)
    assert not re.search(r"\b(ld|st)\.local|__local_depot|\bcall\b", text)
    source = tmp_path / "smo.ptx"
    source.write_text(text)
    architecture = f"-arch={sm(capability)}"
    done = subprocess.run(
        [ptxas, "-v", architecture, str(source), "-o", str(tmp_path / "smo.cubin")],
        capture_output=True,
        text=True,
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
    registers = int(re.search(r"Used (\d+) registers", report)[1])
    shared = int((re.search(r"(\d+) bytes smem", report) or [0, 0])[1])
    assert registers * 512 <= 65_536 and shared <= 48 << 10


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("name, most", [("select", 10), ("inner", 16)])
def test_a_warp_finds_the_largest_key_by_one_instruction_a_word(ptx, name, most, capability):
    """Where there is one: of two words of a key, and of its place."""
    text = ptx(name, "float32", capability)
    found = len(re.findall(r"redux\.sync\.max\.s32", text))
    exchanged = len(re.findall(r"shfl\.sync", text))
    if capability >= (8, 0):
        assert 0 < found <= most and not exchanged
    else:
        assert 0 < exchanged <= 5 * most and not found


@pytest.mark.parametrize("real", ["float32", "float64"])
def test_no_product_of_a_step_is_joined_with_a_sum(ptx, real):
    """What the CPU rounds twice, a product and a sum, is rounded twice.

    ptxas may join `mul` with `add` and `sub`, but no `mul.rn`. Squares of changes may be joined.
    """
    text = ptx("inner", real, HOPPER)
    assert all(a == b for a, b in re.findall(r"fma\.rn\.f64\s+\S+ (%\w+), (%\w+),", text))
    assert re.search(r"mul\.rn\.f64", text)
    sums = set(re.findall(r"%\w+", " ".join(re.findall(r"(?:add|sub)\S*\.f64.*", text))))
    assert not sums & set(re.findall(r"mul\.f64\s+(%\w+),", text))
