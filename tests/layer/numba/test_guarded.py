"""The tiles keep to their buffers: the page after each may not be touched."""

import re
import signal
import sys

import pytest

# Packed centers, written and read up to their last byte and `beyond`.
TOUCH = """
import ctypes, sys
import numpy as np
import tight
from gpurbf.layer.backends.numba import packing
panels = packing.aligned((2, 33, 16), np.float32)
packing.fill_panels(panels, np.ones((33, 20)))
last = panels.ctypes.data + panels.nbytes - 1 + int(sys.argv[1])
ctypes.memset(last, 7, 1) if sys.argv[2] == "write" else ctypes.string_at(last, 1)
"""


@pytest.fixture(scope="module")
def guarded(behind_library):
    """Run Python with these arguments where memory has guards."""
    if not sys.platform.startswith("linux"):
        pytest.skip("guards in front of malloc need Linux")
    run = behind_library("guarded/guard.c", "LD_PRELOAD")
    return run or pytest.skip("this C library's malloc has other names")


@pytest.mark.parametrize("how", ["read", "write"])
def test_a_byte_too_many_is_a_signal(guarded, how):
    assert guarded("-c", TOUCH, "0", how).returncode == 0
    assert guarded("-c", TOUCH, "1", how).returncode == -signal.SIGSEGV


@pytest.mark.slow
def test_kernels_pass_their_tests_within_guards(guarded):
    done = guarded(
        *("-m", "pytest", "-q", "-p", "tight", "-p", "no:cacheprovider", "-p", "no:faulthandler"),
        *(f"tests/layer/numba/test_{name}.py" for name in ("tiles", "gram", "kept")),
        *("-k", "test_tiles or test_kept or sums_are or targets_beyond or metric_and_profile"),
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout
    assert int(re.search(r"^guarded (\d+)", done.stdout, re.MULTILINE)[1]) > 20_000
