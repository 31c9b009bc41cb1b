"""Kernels of SVC's solver wait for threads between two of them, for a moment at the most."""

import threading

import numpy as np
import pytest
from callers import exit_code_of_a_child, forks
from numba import njit

import gpurbf
from gpurbf.runtime.jit import gil_spin
from gpurbf.svm._smo_kernels import solve_block
from gpurbf.svm.pair_kernel import all_rows, subtract_rows
from gpurbf.svm.pairs import between_kernels


@pytest.fixture(autouse=True)
def nobody():
    # A kernel that had no memory, in a test before, has not said that it ended.
    gil_spin.between[:] = 0
    yield
    left, gil_spin.between[:] = gil_spin.between[0], 0
    assert left == 0


def _kernel():
    f = np.zeros(4)
    subtract_rows(np.ones((2, 4), np.float32), np.array([0, 1]), np.ones(2), f)
    assert (f == -2).all()


def test_a_thread_in_its_turn_is_counted_where_it_is_between_kernels():
    with between_kernels():
        assert gil_spin.between[0] == 1
        _kernel()
        assert gil_spin.between[0] == 1
    assert gil_spin.between[0] == 0
    _kernel()  # without a turn
    with between_kernels(False):
        assert gil_spin.between[0] == 0


def test_who_is_never_done_keeps_others_for_a_moment_only():
    gil_spin.between[:] = 3
    _kernel()
    assert gil_spin.between[0] == 3
    with between_kernels():
        _kernel()
    assert gil_spin.between[0] == 3
    gil_spin.between[:] = 0


def test_a_kernel_ends_when_the_other_thread_begins_one(monkeypatch):
    monkeypatch.setattr(
        gil_spin, "_MAX_LOOKS", 2**62
    )  # as good as for ever, in what is compiled here

    @njit(nogil=True)
    def kernel():
        gil_spin.begin_kernel()
        gil_spin.end_kernel()

    kernel()
    gil_spin.between[:] = 2  # this thread is between two kernels, and who calls this one was
    thread = threading.Thread(target=kernel, daemon=True)
    thread.start()
    thread.join(0.2)
    waited = thread.is_alive()
    gil_spin.between[0] -= 1  # this one has begun a kernel
    thread.join(60)
    assert waited and not thread.is_alive()
    assert gil_spin.between[0] == 1
    gil_spin.between[:] = 0


def test_threads_in_turns_end_up_where_they_began():
    done = threading.Event()

    def other():
        with between_kernels():
            while not done.is_set():
                _kernel()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        with between_kernels():
            for _ in range(2000):
                _kernel()
                assert gil_spin.between[0] in (1, 2)
    finally:
        done.set()
        thread.join()
    assert gil_spin.between[0] == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_turn_that_breaks_off_is_over(error):
    with pytest.raises(error), between_kernels():
        _kernel()
        raise error


def test_a_fit_leaves_nothing():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2400, 5)), np.repeat(np.arange(4), 600)
    gpurbf.SVC(tol=0.1).fit(X, y)
    assert gil_spin.between[0] == 0
    X[:, 0], X[7] = 1e30, -1e300
    with pytest.raises(ValueError, match="not finite"):
        gpurbf.SVC(kernel="poly", degree=9, gamma=1.0, tol=0.1).fit(X, y)


def test_a_kernel_finds_numbers_that_are_not_finite():
    ones, K = np.ones(2), np.eye(2, dtype=np.float32)
    f = np.array([1.0, np.inf])
    assert np.isnan(solve_block(tuple(all_rows(K)), ones, -ones, ones, np.zeros(2), f, 0.1, 0)[1])


@forks
def test_a_forked_child_waits_for_nobody():
    gil_spin.between[:] = 2
    code = exit_code_of_a_child(lambda: gil_spin.between[0] == 0)
    gil_spin.between[:] = 0
    assert code == 0
