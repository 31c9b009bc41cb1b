"""The tiles keep to their buffers: the page after each may not be touched."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT, GUARDED = Path(__file__).parents[3], Path(__file__).with_name("guarded")

# Packed centers, written and read up to their last byte and `beyond`.
TOUCH = """
import ctypes, sys
import numpy as np
import tight
from gpurbf.layer.backends.numba import packing
panels = packing.pack_many(np.ones((33, 20)), np.float32)
last = panels.ctypes.data + panels.nbytes - 1 + int(sys.argv[1])
ctypes.memset(last, 7, 1) if sys.argv[2] == "write" else ctypes.string_at(last, 1)
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Run Python with these arguments where memory has guards."""
    compiler = shutil.which("cc")
    if not sys.platform.startswith("linux") or not compiler:
        pytest.skip("guards in front of malloc need Linux and a C compiler")
    library = tmp_path_factory.mktemp("guarded") / "guard.so"
    command = [compiler, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", GUARDED / "guard.c"]
    if subprocess.run([*command, "-o", library], capture_output=True).returncode:
        pytest.skip("this C library's malloc has other names")
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "PYTHONPATH": os.pathsep.join([str(GUARDED), *sys.path]),
    }

    def run(*arguments):
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize("how", ["read", "write"])
def test_a_byte_too_many_is_a_signal(guarded, how):
    assert guarded("-c", TOUCH, "0", how).returncode == 0
    assert guarded("-c", TOUCH, "1", how).returncode == -signal.SIGSEGV


@pytest.mark.slow
def test_kernels_pass_their_tests_within_guards(guarded):
    done = guarded(
        *("-m", "pytest", "-q", "-p", "tight", "-p", "no:cacheprovider", "-p", "no:faulthandler"),
        *(f"tests/layer/numba/test_{name}.py" for name in ("tiles", "gram", "kept")),
        *(
            "-k",
            "test_tiles or test_kept or sums_are_those or targets_beyond or metric_and_profile",
        ),
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout
    assert int(re.search(r"^guarded (\d+)", done.stdout, re.MULTILINE)[1]) > 20_000
