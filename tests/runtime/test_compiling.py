"""While kernels are compiled, one line says so; where they are in the cache, none."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from callers import run_python

from gpurbf.runtime import jit
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import Recorder
from gpurbf.svm import _smo_kernels

OURS, OTHERS = ({"module": name} for name in ("gpurbf.svm.pairs", "numba.np.arrayobj"))
NESTED = [(1, 0.0, OURS), (1, 0.2, OTHERS), (-1, 0.2, OTHERS), (-1, 0.2, OURS)]


@pytest.mark.parametrize(
    ("passes", "n_lines"),
    [
        ([(1, 0.0, OURS), (-1, 0.4, OURS)] * 10, 1),
        (NESTED, 0),  # a pass inside another counts once
        (NESTED * 2, 1),
        ([(1, 0.0, OURS), (1, 0.1, OTHERS), (-1, 1.0, OTHERS)], 1),  # before a long one ends
        ([(1, 9.0, OURS), (-1, 0.1, OURS)] * 3, 0),  # time between passes does not count
        ([(1, 0.0, OTHERS), (-1, 9.0, OTHERS)], 0),  # nor do others' kernels
    ],
)
def test_a_second_of_passes_says_one_line(capsys, passes, n_lines):
    """Passes that begin (1) or end (-1), the seconds since the last moment, and whose they are."""
    clock = SimpleNamespace(now=0.0)
    announcer = jit.Announcer(lambda: clock.now)
    for step, seconds, data in passes:
        clock.now += seconds
        (announcer.on_start if step > 0 else announcer.on_end)(SimpleNamespace(data=data))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == n_lines
    assert all(jit.cache_folder() in line and "warmup" in line for line in lines)


@pytest.mark.slow
def test_a_first_call_says_it_and_a_second_is_not_even_ready_to_compile(tmp_path):
    code = """if True:
        from gpurbf import SVC
        from gpurbf.runtime.jit import cpu_target
        target, calls = cpu_target.target_context, []
        make_ready = target.refresh
        target.refresh = lambda: (calls.append(1), make_ready())
        SVC(backend="numba").fit([[0.0], [2.1]] * 9, [0, 1] * 9)
        print(bool(calls))
    """
    runs = [run_python(code, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    assert [run.stdout for run in runs] == ["True\n", "False\n"]
    first, second = (run.stderr.splitlines() for run in runs)
    assert len(first) == 1 and str(tmp_path) in first[0]
    assert not second


READ_ONLY = """if True:
    import numpy as np
    import gpurbf
    from gpurbf.runtime.jit import caching

    names, compile = [], caching.JitKernel.compile
    caching.JitKernel.compile = lambda kernel, types: (
        names.append(kernel.__name__), compile(kernel, types))[1]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 6))
    y = (X[:, 0] + rng.normal(size=len(X)) > 0).astype(int)
    P, some = np.round(20 * X), y.argsort(kind="stable")[:1000:3]
    K = np.exp(-((X[some, None] - X[some]) ** 2).sum(2))

    def fit():
        for Z in (X, P):
            gpurbf.SVC(C=100).fit(Z, y).predict(Z)
            gpurbf.RBFClassifier(60, random_state=0).fit(Z, y).predict(Z)
        gpurbf.SVC(kernel="precomputed", C=1e4).fit(K, y[some]).predict(K)

    fit()
    first = set(names)
    functions = len(caching.compiled._made)
    names.clear()
    for array in (X, P, K):
        array.flags.writeable = False
    fit()
    assert {"begin_pairs", "solve_free"} <= first and not names, (first, names)
    assert len(caching.compiled._made) == functions
"""


def test_read_only_data_compile_nothing_again():
    """Such as joblib's workers get; K is in the solver's order, so it is not copied."""
    run_python(READ_ONLY)


def test_without_a_folder_the_error_says_what_to_set():
    code = (
        "from numba.core.registry import CPUDispatcher\n"
        "def refuse(self): raise RuntimeError('cannot cache function')\n"
        "CPUDispatcher.enable_caching = refuse\n"
        "import gpurbf.runtime.jit\n"
    )
    done = run_python(code, check=False)
    assert "set NUMBA_CACHE_DIR" in done.stderr.splitlines()[-1]


def test_only_kernels_without_pythons_lock_are_timed_as_such():
    kernels = lazy_module("gpurbf.svm._smo_kernels")
    with Recorder():
        assert kernels.kkt_summary is _smo_kernels.kkt_summary
        assert kernels.begin_pairs is not _smo_kernels.begin_pairs


def test_the_folder_that_is_named_contains_those_of_all_kernels():
    folders = [kernel.stats.cache_path for kernel in (_smo_kernels.begin_pairs, jit._cached)]
    assert all(Path(folder).is_relative_to(jit.cache_folder()) for folder in folders)
