"""A call that breaks off leaves the model as it was, and the next call works as always."""

import os
import pickle
import signal
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
import standin
from callers import interrupts, outputs, run_python
from hypothesis import strategies as st
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score

from gpurbf import RBFClassifier
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


@campaign("faults", 12, name=NAMES, backend=st.sampled_from(BACKENDS), k=st.integers(1, 400))
def test_a_failed_allocation_leaves_the_model_as_it_was(name, backend, k):
    """MemoryError out of the k-th call of NumPy by the package, wherever that is."""
    with limited(1):  # OpenBLAS's last bits depend on its threads too
        model, pickled, expected = fitted(name, backend)
    seen = 0

    def refuse(frame, event, argument):
        nonlocal seen
        if event == "c_call" and frame.f_code.co_filename.startswith(PACKAGE):
            module = getattr(argument, "__module__", None) or ""
            if module.startswith("numpy") or isinstance(
                getattr(argument, "__self__", None), np.ndarray
            ):
                seen += 1
                if seen == k:
                    raise MemoryError(f"at call {k}")

    broken = None
    with limited(1):  # other threads have no tracer
        try:
            sys.setprofile(refuse)
            model.fit(B, b)
        except MemoryError as error:
            broken = error
        finally:
            sys.setprofile(None)
    assert (broken is None) == (seen < k)
    if broken is None:
        agree(model, expected)
    else:
        with limited(1):
            same(model, pickled, expected)


@campaign(
    "faults",
    8,
    name=st.sampled_from(["RBFClassifier", "RBFLayer", "SVC"]),
    k=st.integers(1, 120),
    row=st.booleans(),
)
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


FORK = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import numpy as np
from tests.campaign.test_faults import B, MODELS, b, clone, outputs
model = clone(MODELS[sys.argv[1]]).set_params(backend="numba")
if sys.argv[1] == "SVC":
    model.decision_function_shape = "ovo"  # votes are a product of NumPy's
expected, stop, wrong = outputs(clone(model).fit(B, b), B), threading.Event(), []

def same():
    return np.allclose(outputs(clone(model).fit(B, b), B), expected, rtol=0, atol=1e-6)

def fit():
    while not stop.is_set():
        wrong.extend([] if same() else [1])

thread, rng = threading.Thread(target=fit), np.random.default_rng(int(sys.argv[2]))
thread.start()
for _ in range(20):
    time.sleep(rng.random() / 100)
    child = os.fork()
    if child == 0:
        os._exit(0 if same() else 1)
    wrong.extend([] if os.waitpid(child, 0)[1] == 0 else [2])
stop.set()
thread.join()
sys.exit(str(wrong) if wrong else 0)
"""


@campaign("faults", 1, name=st.sampled_from(["RBFLayer", "SVC"]), seed=SEEDS)
def test_a_fork_while_another_thread_fits(name, seed):
    """Our own work: a child forked while another thread is in OpenBLAS or MKL may hang in them."""
    if not hasattr(os, "fork"):
        pytest.skip("the platform has no fork")
    run_python(FORK, name, seed)


class Killed(RBFClassifier):
    """Its process ends without a word, as when the system runs out of memory."""

    def fit(self, X, y):
        os.kill(os.getpid(), signal.SIGKILL)


@campaign("faults", 1, model=st.sampled_from([MODELS["RBFClassifier"], MODELS["SVC"]]))
def test_a_killed_worker_is_an_error_and_the_next_call_works(model):
    with pytest.raises(TerminatedWorkerError):
        Parallel(2, backend="loky")(delayed(Killed(5).fit)(A, a) for _ in range(2))
    scores = cross_val_score(model, X, y, cv=2, n_jobs=2)
    np.testing.assert_array_equal(scores, cross_val_score(model, X, y, cv=2))


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
