"""Calls work though kernels on disk are damaged or written by several processes at once."""

import random
import tempfile
from functools import partial
from pathlib import Path

import numba
import pytest
from callers import run_python, run_threads
from hypothesis import strategies as st

from gpurbf.runtime.jit import caching
from tests.campaign.cases import SEEDS
from tests.campaign.rounds import campaign


def triple(x):
    return 3 * x


def damaged(content, seed, share):
    """Some bytes changed, lost or added, from a place on."""
    draw = random.Random(seed)
    place = int(share * len(content))
    kind = draw.choice(["cut", "flip", "insert", "zero"])
    if kind == "cut":
        return content[:place]
    if kind == "insert":
        return content[:place] + draw.randbytes(draw.randint(1, 50)) + content[place:]
    length = draw.randint(1, 50)
    other = bytes(length) if kind == "zero" else draw.randbytes(length)
    return content[:place] + other + content[place + length :]


@campaign("faults", 8, seed=SEEDS, share=st.floats(0, 0.1), index=st.booleans())
def test_a_damaged_kernel_is_compiled_anew(seed, share, index):
    """Damage any byte of the index, or the beginning of the code: nobody checks machine code."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", folder)
        assert caching.cached()(triple)(14) == 42
        (path,) = Path(folder).rglob("*.nbi" if index else "*.nbc")
        content = path.read_bytes()
        path.write_bytes(
            damaged(content, seed, 10 * share) if index else content[: int(share * 1e4)]
        )
        for _ in range(2):
            assert caching.cached()(triple)(14) == 42


@campaign("faults, hours only", 1, seed=SEEDS)
def test_kernels_compiled_by_several_processes_at_once(seed):
    code = (
        "import numpy as np\n"
        "from gpurbf import RBFLayer\n"
        "X = np.arange(80.0).reshape(20, 4) % 7.3\n"
        "print(RBFLayer(5, random_state=0, backend='numba').fit_transform(X).tobytes().hex())"
    )
    with tempfile.TemporaryDirectory() as folder:
        run = partial(run_python, code, NUMBA_CACHE_DIR=folder)
        outputs = {done.stdout for done in run_threads(run, run, run)}
        assert len(outputs) == 1 and outputs != {""}
        again = run()
        assert again.stdout in outputs and "compiles" not in again.stderr
