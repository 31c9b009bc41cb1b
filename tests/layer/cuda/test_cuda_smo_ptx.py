"""What the kernels of SVC's steps are compiled to, without a GPU."""

import functools
import importlib
import re
from functools import partial
from types import SimpleNamespace

import pytest
from test_cuda_ptx import CAPABILITIES, HOPPER, LOCAL

from tests.layer.cuda.conftest import sm


@pytest.fixture(scope="module")
def ptx(numba_cuda):
    """A function that compiles a kernel for K in float32 or float64 and a capability, once."""
    from numba import types
    from numba.cuda import dispatcher

    from gpurbf.layer.backends.cuda.kernels import warps
    from gpurbf.svm import _cuda_smo_kernels

    @functools.cache
    def compiled(name, real, capability):
        # Functions that kernels call are compiled once, for the GPU of the first.
        for module in (warps, _cuda_smo_kernels):
            importlib.reload(module)
        vector, matrix, cube = (partial(types.Array, ndim=n, layout="C") for n in (1, 2, 3))
        number, integer, short = types.float64, types.int64, types.int32
        real, numbers, integers = getattr(types, real), vector(number), vector(integer)
        fields = {
            "Pairs": [integers, integers, *[numbers] * 3, integers, integers],
            "Sets": [matrix(short), vector(short)],
            "Values": [matrix(real), numbers],
            "Blocks": [cube(real), matrix(number), matrix(number)],
            "Rules": [number, integer, integer, number, number, integer, number],
        }
        pairs, sets, values, blocks, rules = (
            types.NamedTuple(members, getattr(_cuda_smo_kernels, kind))
            for kind, members in fields.items()
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
            text = numba_cuda.compile_ptx(kernel, signature, cc=capability)[0]
        if capability >= (10, 0) and f".target {sm(capability)}" not in text:
            pytest.skip(f"{sm(capability)}: newer than this numba.cuda or its toolkit")
        return text

    return compiled


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize(
    "name, words", [("select", 10), ("gather", 0), ("inner", 16), ("update", 0)]
)
def test_kernels_have_room_for_their_threads_and_warps_meet_in_few_instructions(
    ptx,
    assembled,
    name,
    words,
    capability,
):
    """The largest key of a warp is one instruction a word where there is one: of two words and its
    place; elsewhere five."""
    text = ptx(name, "float64" if name == "gather" else "float32", capability)
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
def test_no_product_of_a_step_is_joined_with_a_sum(ptx, real):
    """What the CPU rounds twice, a product and a sum, is rounded twice.

    ptxas may join `mul` with `add` and `sub`, but no `mul.rn`. Squares of changes may be joined.
    """
    text = ptx("inner", real, HOPPER)
    assert all(a == b for a, b in re.findall(r"fma\.rn\.f64\s+\S+ (%\w+), (%\w+),", text))
    assert re.search(r"mul\.rn\.f64", text)
    sums = set(re.findall(r"%\w+", " ".join(re.findall(r"(?:add|sub)\S*\.f64.*", text))))
    assert not sums & set(re.findall(r"mul\.f64\s+(%\w+),", text))
