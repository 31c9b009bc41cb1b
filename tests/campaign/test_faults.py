"""A call that breaks off leaves the model as it was, and the next call works as always."""

import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import standin
from callers import exit_code_of_a_child, forks, interrupts, outputs, raising_at, run_python
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits

from gpurbf.runtime.threads import limited
from tests.campaign.cases import BACKENDS, MODELS, NAMES, SEEDS
from tests.campaign.rounds import campaign

X, y = load_digits(n_class=4, return_X_y=True)
A, a, B, b = X[:150], y[:150], X[150:300] + 0.5, y[150:300] + 100
PACKAGE = os.path.dirname(sys.modules["gpurbf"].__file__)


def agree(model, expected):
    """The outputs in bits; MKL's depend on its threads and on where arrays lie in memory."""
    atol = 1e-6 if model.backend == "mkl" else 0
    np.testing.assert_allclose(outputs(model, B), expected, rtol=0, atol=atol)


def same(model, pickled, expected):
    """The model is what it was, and can be fitted to what it should be."""
    assert pickle.dumps(model) == pickled
    agree(clone(model).fit(B, b), expected)


def fitted(name, backend):
    """A model, its state, and what a fit of it on other data answers."""
    model = clone(MODELS[name]).set_params(backend=backend).fit(A, a)
    pickled = pickle.dumps(pickle.loads(pickle.dumps(model)))
    return pickle.loads(pickled), pickled, outputs(clone(model).fit(B, b), B)


def of_numpy(function):
    """Whether a built-in function is NumPy's, or a method of an array."""
    module = getattr(function, "__module__", None) or ""
    return module.startswith("numpy") or isinstance(getattr(function, "__self__", None), np.ndarray)


@campaign("faults", 12, name=NAMES, backend=st.sampled_from(BACKENDS), k=st.integers(1, 400))
def test_a_failed_allocation_leaves_the_model_as_it_was(name, backend, k):
    """MemoryError out of the k-th call of NumPy by the package, wherever that is."""
    with limited(1):  # OpenBLAS's last bits depend on its threads too; others have no tracer
        model, pickled, expected = fitted(name, backend)
        refit = partial(model.fit, B, b)
        try:
            seen = raising_at(k, MemoryError, refit, PACKAGE, builtins=of_numpy)
        except MemoryError:
            same(model, pickled, expected)
        else:
            assert seen < k
            agree(model, expected)


ON_DEVICE = st.sampled_from(["RBFClassifier", "RBFLayer", "SVC"])


@campaign("faults", 8, name=ON_DEVICE, k=st.integers(1, 120), row=st.booleans())
def test_a_failed_allocation_of_a_device_leaves_the_model_as_it_was(name, k, row):
    """The stand-in of a GPU: smaller tiles, or a MemoryError that leaves the model as it was."""
    with standin.installed() as cupy:
        gpu = cupy.gpu
        model, pickled, expected = fitted(name, "cupy")
        gpu.fail_at = {gpu.n_allocations + k + i for i in range(20 if row else 1)}
        try:
            model.fit(B, b)
        except MemoryError:
            gpu.fail_at = ()
            same(model, pickled, expected)
        else:
            gpu.fail_at = ()
            np.testing.assert_allclose(outputs(model, B), expected, rtol=1e-3, atol=1e-3)
        del model


# An interrupt in what the collector or a weak reference calls is said and lost: so is Python.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function (gc_|WeakSet):pytest.PytestUnraisableExceptionWarning"
)
@campaign("faults", 15, name=NAMES, share=st.floats(0, 1), backend=st.sampled_from(BACKENDS))
def test_an_interrupt_at_any_moment_leaves_a_whole_model(name, share, backend):
    """Ctrl-C by a signal: at any instruction, and not only where a function is called."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("the platform has no interval timer")
    model, pickled, expected = fitted(name, backend)
    began = time.perf_counter()
    clone(model).fit(B, b)
    wait = max(1e-5, share * (time.perf_counter() - began))
    with interrupts(signal.SIGALRM), suppress(KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, wait)
        model.fit(B, b)
        signal.setitimer(signal.ITIMER_REAL, 0)
    if pickle.dumps(model) == pickled:
        same(model, pickled, expected)
    else:  # it was over before
        agree(model, expected)


def fork_while_a_thread_fits(name, seed):
    """All fits, of the thread and of twenty children, have the outputs of one that is alone."""
    model = clone(MODELS[name]).set_params(backend="numba")
    expected, stop, codes = outputs(clone(model).fit(B, b), B), threading.Event(), []

    def same():
        return np.allclose(outputs(clone(model).fit(B, b), B), expected, rtol=0, atol=1e-6)

    rng = np.random.default_rng(seed)
    with ThreadPoolExecutor(1) as pool:
        fits = pool.submit(lambda: all(same() for _ in iter(stop.is_set, True)))
        for _ in range(20):
            time.sleep(rng.random() / 100)
            codes.append(exit_code_of_a_child(same))
        stop.set()
    assert fits.result() and not any(codes), codes


@forks
@campaign("faults", 1, name=st.sampled_from(["RBFLayer", "SVC"]), seed=SEEDS)
def test_a_fork_while_another_thread_fits(name, seed):
    """Our own work: a child forked while another thread is in OpenBLAS or MKL may hang in them."""
    module = "from tests.campaign.test_faults import fork_while_a_thread_fits"
    run_python(f"{module}\nfork_while_a_thread_fits({name!r}, {seed})")


@campaign("faults", 10, name=NAMES, seed=SEEDS)
def test_a_clock_that_jumps_changes_no_model(name, seed):
    """Backwards too, at every look."""
    rng = np.random.default_rng(seed)
    model, _, expected = fitted(name, "auto")
    with pytest.MonkeyPatch.context() as patch:
        for clock in ("perf_counter", "monotonic", "time"):
            patch.setattr(time, clock, lambda: float(rng.normal(0, 1e6)))
        model.fit(B, b)
    np.testing.assert_array_equal(outputs(model, B), expected)
