"""Fixtures for every test: a backend by name, and the real data where they are at hand."""

import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import standin
from callers import Caller

from benchmarks import measure
from gpurbf import BackendUnavailable, datasets
from gpurbf.layer.backends import LOADERS, get_backend
from gpurbf.runtime import blas_threads, threads

with suppress(ImportError):  # the tests that need it skip by name
    import hypothesis

    hypothesis.settings.register_profile(
        "gpurbf", deadline=None, derandomize=True, database=None, print_blob=True
    )
    hypothesis.settings.load_profile("gpurbf")

# Every backend there ever was or is planned: one that is missing is skipped by name, not absent.
BACKENDS = ("numpy", "mkl", "numba", "cupy", "numba-cuda")
# The ones that a run must have, e.g. GPURBF_REQUIRE=cupy,numba-cuda on a machine with a GPU.
REQUIRED = set(filter(None, os.environ.get("GPURBF_REQUIRE", "").split(",")))
if REQUIRED - set(BACKENDS):
    raise pytest.UsageError(f"GPURBF_REQUIRE={','.join(REQUIRED)}: there are {BACKENDS}")


def pytest_configure(config):
    """What CuPy's compiled code warns of is attributed to its caller: a line of ours, or a test."""
    if importlib.util.find_spec("cupy"):
        config.addinivalue_line("filterwarnings", "default::DeprecationWarning")


@pytest.fixture(scope="session", autouse=True)
def no_rest():
    """No test states a time, so none waits for other libraries' threads to go to sleep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "REST", 0)
        yield


def _blas_threads():
    libraries = blas_threads.blas_libraries().lib_controllers
    return {library.filepath: library.num_threads for library in libraries}


@pytest.fixture(autouse=True)
def same_threads():
    """Every test leaves the numbers of threads that it found; else one of the later ones fails."""
    before = _blas_threads()
    yield
    after = before | _blas_threads()  # a test may load another library
    assert {path: after[path] for path in before} == before
    assert not threads._limits.get()


@pytest.fixture(params=BACKENDS)
def backend(request):
    """The name of each backend in turn; skipped with the reason where it is not available."""
    name = request.param
    try:
        if name not in LOADERS:
            raise BackendUnavailable("not in this version of gpurbf")
        get_backend(name)
    except BackendUnavailable as error:
        report = pytest.fail if name in REQUIRED else pytest.skip
        report(f"backend {name}: {error}")
    return name


@pytest.fixture
def cupy():
    """The stand-in, installed as CuPy."""
    with standin.installed() as module:
        yield module


@pytest.fixture
def cores(monkeypatch):
    """Let the process have eight threads, whatever the machine has."""
    monkeypatch.setattr(threads, "_cores", lambda: 8)
    if parallel := sys.modules.get("numba.np.ufunc.parallel"):
        monkeypatch.setattr(parallel, "_is_initialized", False)
    return 8


@pytest.fixture
def callers():
    """Four threads with blocks to enter and leave."""
    made = [Caller() for _ in range(4)]
    yield made
    for caller in made:
        caller.leave()
        caller._thread.shutdown()


def real_data(*parts):
    """A path in the folder that GPURBF_TEST_DATA names, or a skip that says what is missing."""
    root = os.environ.get("GPURBF_TEST_DATA")
    if not root:
        pytest.skip(f"{parts[0]}: GPURBF_TEST_DATA does not name a folder of real data")
    path = Path(root, *parts)
    if not path.exists():
        pytest.skip(f"{parts[0]}: {path} does not exist")
    return path


@pytest.fixture(scope="session")
def mnist():
    """MNIST as (X_train, y_train, X_test, y_test), uint8."""
    return datasets.load_mnist(real_data("mnist"))


@pytest.fixture
def published(request):
    """The arrays of a published experiment, by name, from the file that is the parameter."""
    with np.load(real_data(*request.param)) as arrays:
        return dict(arrays)
