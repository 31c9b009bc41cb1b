"""The AMX kernel without AMX: what it is compiled to, its configuration, its permission."""

import re

import numpy as np
import pytest
from callers import run_python

from gpurbf.layer.backends.numba import amx
from gpurbf.runtime import cpu

COMPILE = """
from numba import cfunc, types
from gpurbf.layer.backends.numba import activation_kernels, microkernel_table
integer, real = types.intp, types.float64
for name, count in (("dot_amx", 7), ("enter_amx", 1), ("leave_amx", 1)):
    function = microkernel_table._function(name)
    print(cfunc(types.void(*(integer,) * count))(function)._library.get_asm_str())
print("PROFILE")
signature = types.void(types.CPointer(types.float32), integer, real, real, integer)
print(cfunc(signature, fastmath={"contract"})(activation_kernels.gaussian)._library.get_asm_str())
"""


@pytest.fixture(scope="module")
def assembly():
    """What LLVM makes of the kernel for a CPU with AMX; nothing of it is run."""
    if "avx" not in cpu.cpu_features():
        pytest.skip("not an x86-64 CPU")
    features = "+amx-tile,+amx-int8,+avx512f,+avx512bw,+avx512vl,+avx512dq"
    environment = {"NUMBA_CPU_NAME": "sapphirerapids", "NUMBA_CPU_FEATURES": features}
    return run_python(COMPILE, **environment).stdout


def test_tile_instructions_meet_the_operands_they_are_meant_for(assembly):
    # AT&T order: centers, rows, sums.
    found = re.findall(r"\ttdpbsud\s+%tmm(\d), %tmm(\d), %tmm(\d)", assembly)
    assert set(found) == {("6", "4", "0"), ("7", "4", "1"), ("6", "5", "2"), ("7", "5", "3")}
    least = {"tileloadd": 4, "tilezero": 4, "tilestored": 4, "ldtilecfg": 1, "tilerelease": 1}
    for instruction, count in least.items():
        assert len(re.findall(rf"\t{instruction}\b", assembly)) >= count, instruction


def test_activations_use_the_widest_vectors_where_llvm_prefers_half(assembly):
    assert len(re.findall(r"vfmadd.*%zmm", assembly.split("PROFILE")[1])) > 5


def test_configuration_is_palette_one_with_eight_full_tiles():
    assert amx.CONFIGURATION[0] == 1 and amx.CONFIGURATION.size == 64
    np.testing.assert_array_equal(amx.CONFIGURATION[16:32].view(np.uint16), [64] * 8)
    np.testing.assert_array_equal(amx.CONFIGURATION[48:56], [16] * 8)


def test_permission_is_asked_without_harm():
    assert amx.permission() is None or isinstance(amx.permission(), str)
