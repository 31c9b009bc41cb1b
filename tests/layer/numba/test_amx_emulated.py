"""The machine code of the AMX kernel on any CPU with AVX-512: tile instructions trap, C obeys."""

import platform
import re
import signal
import sys

import pytest

from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.runtime import cpu

# The kernel on operands of nothing but ones: 32 rows, 32 centers, 64 inputs.
ONES = """
import pretend
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from gpurbf.layer.backends.numba import microkernel_table
from gpurbf.layer.backends.numba import amx
x, c, out = np.ones(2048, np.int8), np.ones(2048, np.uint8), np.zeros((32, 256), np.int32)
first = np.zeros(1, np.int32)
names = ("enter_amx", "dot_amx", "leave_amx")
enter, dot, leave = (microkernel_table.compiled(name).ctypes for name in names)
configured = amx.CONFIGURATION.ctypes.data
operands = x.ctypes.data, first.ctypes.data, c.ctypes.data, 1024, 1, out.ctypes.data, 0
"""
OBEYED = "enter(configured); dot(*operands); assert (out[:, :32] == 64).all()"
FORBIDDEN = {
    "tiles that are not configured": "dot(*operands)",
    "tiles given back": "enter(configured); leave(0); dot(*operands)",
    "sizes that do not fit": "amx.CONFIGURATION[52] = 8; " + OBEYED,
    "another palette": "amx.CONFIGURATION[0] = 2; " + OBEYED,
    "tiles of another thread": "enter(configured); ThreadPoolExecutor().submit(dot, *operands)",
}


@pytest.fixture(scope="module")
def emulated(behind_library):
    """Run Python with these arguments on a CPU that seems to have AMX."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the emulation of AMX needs Linux on x86-64")
    if cpu_kernel.missing("amx") is None:
        pytest.skip("this CPU has AMX, so the other tests run its kernel")
    needed = {name for name in cpu_kernel.KERNELS["amx"].features.split() if "amx" not in name}
    if absent := needed - cpu.cpu_features():
        pytest.skip(f"the kernels beside that for AMX need {', '.join(sorted(absent))}")
    run = behind_library("emulated/tiles.c", "GPURBF_EMULATOR", "-Werror")
    assert run, "the emulator does not compile"
    return run


@pytest.mark.slow
def test_layers_pass_their_tests_with_the_machine_code_for_amx(emulated):
    chosen = "numba and not (cuda or i8mm or dotprod)"  # all of test_tiles, for its folder
    done = emulated(
        # faulthandler would take the signal.
        *("-m", "pytest", "-q", "-p", "pretend", "-p", "no:faulthandler", "-p", "no:cacheprovider"),
        *("-k", chosen),
        *("tests/layer/numba/test_tiles.py", "tests/layer/test_layer.py"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Kernels for instructions that this CPU lacks are skipped.
    passed = r"^\d+ passed(, \d+ skipped)?, \d+ deselected"
    assert re.search(passed, done.stdout, re.MULTILINE), done.stdout
    (counts,) = re.findall(r"^tiles (configured .*)", done.stdout, re.MULTILINE)
    configured, loaded, multiplied, stored, *rest = map(int, re.findall(r"\d+", counts))
    # Two tiles of rows and two of centers are loaded for four products, and four are stored.
    assert configured > 100 and loaded == multiplied >= stored > 1000
    # Every task gives the tiles of its thread back; rows begin at a multiple of 64.
    assert rest == [configured, 0]


def test_the_emulation_is_as_strict_as_the_hardware(emulated):
    done = emulated("-c", ONES + OBEYED)
    assert done.returncode == 0, done.stderr
    for what, code in FORBIDDEN.items():
        assert emulated("-c", ONES + code).returncode == -signal.SIGILL, what
