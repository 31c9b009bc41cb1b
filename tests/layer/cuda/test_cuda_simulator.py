"""The kernels in Numba's CUDA simulator, which has to be chosen before Numba is imported."""

import re
from pathlib import Path

import pytest
from callers import run_python

ROOT = Path(__file__).parents[3]
# Threads that take turns need half the time if they are all on one CPU.
CODE = """
import os, pytest
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
raise SystemExit(pytest.main())
"""


@pytest.mark.slow
def test_kernels_agree_with_the_reference_in_the_simulator():
    arguments = "-q", "-p", "no:cacheprovider", "tests/layer/cuda/simulated"
    options = {"check": False, "cwd": ROOT, "NUMBA_ENABLE_CUDASIM": "1"}
    done = run_python(CODE, *arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout
