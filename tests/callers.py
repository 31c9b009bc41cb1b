"""Threads, processes and callbacks that do as they are told; layers, and outputs of any model."""

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl

from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV, RBFLayer
from gpurbf.layer.activation import Activation
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime import threads
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.linalg import mirror

# One of each kind, with few centers.
ESTIMATORS = [kind(9, random_state=0) for kind in (RBFLayer, RBFClassifier, RBFClassifierCV)]
ESTIMATORS += [FSVC(random_state=0), SVC()]


def own_numbers():
    """Thread numbers of the BLAS libraries as this thread sees them: MKL has one for each."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return {library.filepath: library.num_threads for library in found.lib_controllers}


def numbers():
    """Thread numbers of the BLAS libraries for a thread that has said nothing."""
    with ThreadPoolExecutor(1) as another:
        return another.submit(own_numbers).result()


def shared_numbers():
    """Those of libraries with one number for all threads."""
    return {path: number for path, number in numbers().items() if "mkl" not in Path(path).name}


def everything():
    """Everything that a limit of threads could leave a trace in."""
    return numbers(), own_numbers(), threads._limits.get(), set(threads._callers)


def layer_of(C, gamma=0.1, metric="euclidean", profile="gaussian", **options):
    """A hidden layer of these centers, on a backend and in a precision if they are named."""
    return HiddenLayer(C, Activation(metric, profile, gamma), **options)


def sums_of(layer, X, T, weights=None, mean=None, grid=None):
    """HᵀH, with both triangles, and HᵀT of a layer, on the host."""
    m = layer.centers.shape[0]
    with layer.allocator():
        out = layer.xp.zeros((m, m)), layer.xp.zeros((m, T.shape[1]))
        layer.gram(X, T, weights, np.zeros(m) if mean is None else mean, out, grid)
        G, B = map(to_host, out)
    mirror(G)
    return G, B


def outputs(model, X):
    """Activations of a layer, decision function of a classifier."""
    return model.transform(X) if hasattr(model, "transform") else model.decision_function(X)


def answers(model, X):
    """Everything that a model says of some samples, by method."""
    names = ("transform", "decision_function", "predict_proba", "predict")
    return {name: getattr(model, name)(X) for name in names if hasattr(model, name)}


class Callback:
    """A scikit-learn callback that does nothing."""

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context): ...


class Recorder(Callback):
    """Writes down the names of the tasks that end, and stops the fit where told to."""

    def __init__(self, stop_after=None):
        self.stop_after, self.ended = stop_after, []

    def on_fit_task_end(self, estimator, context):
        self.ended.append(context.task_name)
        return self.stop_after == context.task_name


class Caller:
    """A thread that enters and leaves blocks when it is told to."""

    def __init__(self):
        self._thread, self._blocks = ThreadPoolExecutor(1), ExitStack()

    def enter(self, make, *arguments):
        return self._thread.submit(lambda: self._blocks.enter_context(make(*arguments))).result()

    def leave(self):
        self._thread.submit(self._blocks.close).result()


def run_threads(*targets):
    """What each gives, called in a thread of its own, all at one moment."""
    together = threading.Barrier(len(targets))

    def call(target):
        together.wait()
        return target()

    with ThreadPoolExecutor(len(targets)) as pool:
        return list(pool.map(call, targets))


@contextmanager
def interrupts(number=signal.SIGINT):
    """The signal is an interrupt, which a process in the background may ignore otherwise."""
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def run_python(code, *arguments, check=True, cwd=None, **environment):
    """A fresh process, ended, that has run the code; its errors are this one's unless unchecked.

    It imports from where this one does, whatever its folder is.
    """
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, arguments)],
        env=os.environ | path | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=1200,  # what hangs is an error, also where nobody looks
    )
    assert not check or done.returncode == 0, done.stderr[-2000:]
    return done


def raising_at(k, error, call, files, *, generators=False, builtins=None):
    """The number of calls of functions in files that begin so; `error` is raised at the k-th.

    A generator that goes on would be left without its own clean-up, which is no interrupt there is.
    With ``builtins``, calls by these files of built-in functions for which it is true.
    """
    seen = 0

    def tracer(frame, event, argument):
        nonlocal seen
        code = frame.f_code
        counts = event == "call" and (generators or not code.co_flags & inspect.CO_GENERATOR)
        if builtins:
            counts = event == "c_call" and builtins(argument)
        if counts and code.co_filename.startswith(files):
            seen += 1
            if seen == k:
                raise error(f"at call {k}: {code.co_qualname}")

    before = sys.getprofile()
    try:
        sys.setprofile(tracer)
        call()
    finally:
        sys.setprofile(before)
    return seen


def forks(test):
    """A mark of tests that fork: skipped where nothing can."""
    test = pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")(test)


def exit_code_of_a_child(function):
    """Exit code of a forked process that calls it: 0 where it is true, by its alarm if it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        good = False
        try:
            good = function()
        finally:
            os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
