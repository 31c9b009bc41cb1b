"""BLAS libraries work with the least of the limits in force, and are left as they were."""

import itertools
import os
import random
import sys
import threading
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from callers import everything, own_numbers, raising_at, run_python, shared_numbers
from sklearn.cluster import MiniBatchKMeans
from threadpoolctl import threadpool_limits

from gpurbf import BackendUnavailable
from gpurbf.centers.kmeans import kmeans
from gpurbf.layer.backends import get_backend
from gpurbf.runtime import blas_threads, linalg, threads
from gpurbf.runtime.linalg import cholesky, solve_triangular


@pytest.fixture(autouse=True, scope="module")
def mkl():
    """MKL is loaded, if there is one."""
    with suppress(BackendUnavailable):
        get_backend("mkl")


def test_limits_of_threads_that_overlap_leave_blas_as_it_was(callers):
    before = everything()
    random.seed(0)
    # A, B begin and A, B end; B, A; one inside the other; at random.
    orders = [*itertools.permutations(range(3)), *(random.sample(range(4), 4) for _ in range(10))]
    for order in orders:
        for i in range(len(order)):
            callers[i].enter(threads.limited, 1 + i % 2)
            assert set(shared_numbers().values()) == {1}
        for i in order:
            callers[i].leave()
        assert everything() == before


def test_blas_has_the_least_of_the_limits_in_force_and_who_has_none_all_threads(callers):
    before, mine, alone = shared_numbers(), own_numbers(), threads.thread_limit()
    first, second, *_ = callers
    first.enter(threads.limited, 2)
    second.enter(threads.limited, 1)
    assert set(shared_numbers().values()) == {1}
    assert set(second._thread.submit(own_numbers).result().values()) == {1}
    assert own_numbers() == mine | shared_numbers()  # MKL's is not limited in other threads
    assert threads.thread_limit() == alone
    assert first._thread.submit(threads.thread_limit).result() == min(2, alone)
    second.leave()
    assert shared_numbers() == {path: min(number, 2) for path, number in before.items()}


def test_blas_alone_is_a_limit_for_blas_only():
    before, own = everything(), threads.thread_limit()
    with threads.single_threaded_blas():
        assert set(shared_numbers().values()) == set(own_numbers().values()) == {1}
        assert threads.thread_limit() == own
    assert everything() == before


@pytest.mark.parametrize("block", [partial(threads.limited, 1), threads.single_threaded_blas])
def test_what_others_tell_blas_within_a_limit_ends_with_it(block):
    """Estimators of scikit-learn do so; what threadpoolctl finds in MKL becomes this thread's."""
    before = everything()
    with block(), threadpool_limits(1):
        pass
    assert everything() == before


def test_k_means_beside_a_limit_of_another_thread_leaves_blas_as_it_was(callers, monkeypatch):
    """Its own limit, as scikit-learn's, restores what it found: the other thread's."""

    def fit(self, X, sample_weight):
        with threadpool_limits(1):
            callers[0].leave()
        self.cluster_centers_ = X[:2]
        return self

    monkeypatch.setattr(MiniBatchKMeans, "fit", fit)
    before = everything()
    callers[0].enter(threads.limited, 1)
    kmeans(np.eye(4), None, 2, weights=None, random_state=None)
    assert everything() == before


def test_a_limit_of_others_that_outlives_ours_is_undone_as_the_page_says(callers):
    before = everything()
    callers[0].enter(threads.limited, 1)
    with threadpool_limits(1):
        callers[0].leave()
    assert set(shared_numbers().values()) == {1}
    threadpool_limits(max(before[0].values()))
    assert everything() == before


@pytest.mark.parametrize("m, k", [(1, 300), (300, 300), (1100, 300), (3100, 3)])
def test_factors_and_solutions_need_no_blas_thread_and_are_the_same_bits_for_any_number_of_ours(
    monkeypatch, m, k
):
    calls, call = [], linalg.blas

    def watched(name, *arguments):
        libraries = blas_threads.blas_libraries().lib_controllers
        calls.append((name, {library.num_threads for library in libraries}))
        call(name, *arguments)

    monkeypatch.setattr(linalg, "blas", watched)
    rng = np.random.default_rng(0)
    A, B = rng.random((m, 20)), rng.random((m, k))
    A = A @ A.T + np.eye(m)
    found = []
    for n in (None, 1):
        with threads.limited(n):
            L = np.tril(cholesky(A.copy()))
            half = solve_triangular(L, B)
            found.append(np.hstack([L, half, solve_triangular(L, half, trans=1)]))
            assert solve_triangular(L, B[:, :0]).shape == (m, 0)
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(L @ L.T, A, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(L @ half, B, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(A @ found[0][:, -k:], B, rtol=1e-9, atol=1e-7)
    assert {"potrf", "trsm"} <= {name for name, _ in calls}
    assert all(number == {1} for _, number in calls)


def test_a_matrix_without_a_factor_is_left_as_it_was_but_for_its_diagonal():
    A = np.eye(600)
    A[500, 3] = A[3, 500] = 0.5
    A[400, 400] = -1
    before = A.copy()
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        cholesky(A)
    np.fill_diagonal(A, before.diagonal())
    np.testing.assert_array_equal(A, before)


def test_an_interrupt_of_a_call_of_blas_is_an_interrupt():
    """ctypes replaces what is raised while it asks an argument for its value."""
    A, where = np.eye(3), sys.modules[type(np.empty(0).ctypes).__module__].__file__
    call = partial(linalg.blas, "trsm", b"L", b"L", b"N", b"N", 3, 3, 1.0, A, 3, np.eye(3), 3)
    n_calls = raising_at(None, None, call, where)
    assert n_calls
    for k in range(1, n_calls + 1):
        with pytest.raises(KeyboardInterrupt):
            raising_at(k, KeyboardInterrupt, call, where)


class OnOpenMP(threading.local):
    """A library that keeps a number for each thread, as OpenBLAS does on OpenMP."""

    internal_api, threading_layer, filepath, num_threads = "openblas", "openmp", "", 4

    def set_num_threads(self, number):
        self.num_threads = number


@pytest.fixture
def library(monkeypatch):
    """The only library there is."""
    found = SimpleNamespace(lib_controllers=[OnOpenMP()])
    monkeypatch.setattr(blas_threads, "blas_libraries", lambda: found)
    return found.lib_controllers[0]


def test_a_library_with_a_number_for_each_thread_has_that_thread_s_limit(library, cores, callers):
    seen, both = [], threading.Barrier(2, timeout=60)

    def look(i=0):
        both.wait()
        seen.append(library.num_threads)

    first, second, *_ = callers
    first.enter(threads.limited, 3)
    second.enter(threads.limited, 1)
    with threads.limited(2):
        threads.parallel_for(look, 2)  # this thread and a helper
        assert seen == [2, 2] and library.num_threads == 2
        with threads.single_threaded_blas():
            threads.parallel_for(look, 2)
        assert seen[2:] == [1, 1] and library.num_threads == 2
    assert library.num_threads == 4
    for caller, number in [(first, 3), (second, 1)]:
        assert caller._thread.submit(lambda: library.num_threads).result() == number
        caller.leave()
        assert caller._thread.submit(lambda: library.num_threads).result() == 4


def test_one_thread_for_such_a_library_is_not_one_for_us(library):
    own = threads.thread_limit()
    with threads.single_threaded_blas():
        assert library.num_threads == 1 and threads.thread_limit() == own


def test_a_library_with_one_number_for_all_threads_is_not_asked_by_each(library, monkeypatch):
    monkeypatch.setattr(OnOpenMP, "threading_layer", "pthreads")
    monkeypatch.setattr(OnOpenMP, "num_threads", property(lambda self: pytest.fail("asked")))
    with blas_threads.thread_limit_here(1):
        pass


def test_an_interrupt_at_any_call_leaves_no_trace():
    before = everything()

    def work():
        with threads.limited(1):
            threads.parallel_for(lambda i: None, 3)
        with threads.single_threaded_blas():
            threads.map_single_threaded_blas([int, int])

    files = threads.__file__, blas_threads.__file__
    for at in itertools.count(1):
        with suppress(KeyboardInterrupt):
            raising_at(at, KeyboardInterrupt, work, files, generators=True)
            break  # there are fewer calls
        assert everything() == before, at
    assert at > 20


@pytest.mark.parametrize("block", [partial(threads.limited, 1), partial(threads._claimed, 1)])
def test_a_block_that_ends_after_the_one_around_it_leaves_no_trace(block):
    """As one that an interrupt leaves within `contextlib`: its traceback holds it."""
    before = everything()
    with threads.limited(1):
        inner = block()
        inner.__enter__()
    del inner  # which ends it
    assert everything() == before


def test_an_interrupt_right_after_a_library_was_told_leaves_no_trace(library, monkeypatch):
    tell = blas_threads._tell_thread

    def interrupted(*given):
        tell(*given)
        monkeypatch.setattr(blas_threads, "_tell_thread", tell)
        raise KeyboardInterrupt

    monkeypatch.setattr(blas_threads, "_tell_thread", interrupted)
    with pytest.raises(KeyboardInterrupt), threads.single_threaded_blas():
        pytest.fail("the block does not begin")
    assert library.num_threads == 4


def test_a_signal_handler_that_computes_while_a_library_is_asked_leaves_no_trace(monkeypatch):
    """All fits of the process had one BLAS thread from then on, and so one thread."""

    class Asked:
        internal_api, filepath, number, handled = "openblas", "", 4, False

        @property
        def num_threads(self):
            if not self.handled:
                self.handled = True
                with threads.single_threaded_blas():
                    pass
            return self.number

        def set_num_threads(self, number):
            self.number = number

    found = SimpleNamespace(lib_controllers=[Asked()])
    monkeypatch.setattr(blas_threads, "blas_libraries", lambda: found)
    monkeypatch.setattr(threads, "_cores", lambda: 4)
    with threads.single_threaded_blas():
        assert found.lib_controllers[0].number == 1
    assert found.lib_controllers[0].number == 4


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="no account of each thread")
def test_no_thread_of_blas_runs_in_fits_or_predictions():
    """One dot product of 12,000 numbers made SVC's fit of MNIST take half as long again."""
    code = """
        import os
        import sys
        import time

        import numpy as np
        import scipy.linalg
        from sklearn.datasets import make_classification, make_moons

        from gpurbf import RBFClassifier, RBFClassifierCV, SVC

        def ran():
            times = {}
            for thread in set(os.listdir("/proc/self/task")) - {str(os.getpid())}:
                with open(f"/proc/self/task/{thread}/schedstat") as file:
                    times[thread] = int(file.read().split()[0])
            return times

        tables = {
            (n, d, k): make_classification(n, d, n_informative=d // 2, n_classes=k, random_state=0)
            for n, d, k in [(12_000, 10, 2), (3000, 200, 3), (1000, 20, 2), (300, 20, 9)]
        }
        A = np.eye(600)
        (A @ A, scipy.linalg.solve(A, A), time.sleep(0.3))
        begin = ran()
        if not begin:
            sys.exit("BLAS has no thread of its own")
        for name, (X, y) in (tables | {"moons": make_moons(11_000, random_state=0)}).items():
            models = [SVC(kernel=kernel, max_iter=3000) for kernel in ("rbf", "linear")]
            for solver in ("ridge", "cg", "lms"):
                models.append(RBFClassifier(300, solver=solver, random_state=0))
            for model in (*models, RBFClassifierCV(200, random_state=0)):
                model.fit(X, y, sample_weight=np.arange(len(y)) % 3 + 1.5)
                for some in (X, X[:1], X.astype(np.float32)):
                    model.predict(some)
                now = ran()
                assert {thread: now[thread] for thread in begin} == begin, (name, model)
"""
    done = run_python(code, check=False)
    if "no thread of its own" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
