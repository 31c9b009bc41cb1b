"""Calls work though kernels on disk are damaged or written by several processes at once."""

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


@campaign(
    "faults",
    8,
    share=st.floats(0, 1),
    how=st.sampled_from(["cut", "replaced", "inserted"]),
    other=st.binary(max_size=50) | st.integers(1, 50).map(bytes),
    index=st.booleans(),
)
def test_a_damaged_kernel_is_compiled_anew(share, how, other, index):
    """Damage any byte of the index, or the beginning of the code: nobody checks machine code."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", folder)
        assert caching.cached()(triple)(14) == 42
        (path,) = Path(folder).rglob("*.nbi" if index else "*.nbc")
        content = path.read_bytes()
        place = int(share * len(content))
        lost = {"cut": len(content), "replaced": len(other), "inserted": 0}[how]
        damaged = content[:place] + other + content[place + lost :]
        path.write_bytes(damaged if index else content[: int(share * 1000)])
        for _ in range(2):
            assert caching.cached()(triple)(14) == 42


@campaign("faults, hours only", 1, seed=SEEDS)
def test_kernels_compiled_by_several_processes_at_once(seed):
    code = """
    import numpy as np
    from gpurbf import RBFLayer
    X = np.arange(80.0).reshape(20, 4) % 7.3
    print(RBFLayer(5, random_state=0, backend="numba").fit_transform(X).tobytes().hex())
    """
    with tempfile.TemporaryDirectory() as folder:
        run = partial(run_python, code, NUMBA_CACHE_DIR=folder)
        outputs = {done.stdout for done in run_threads(run, run, run)}
        assert len(outputs) == 1 and outputs != {""}
        again = run()
        assert again.stdout in outputs and "compiles" not in again.stderr
