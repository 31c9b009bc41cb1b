"""Which backend is taken: a name is obeyed or refused, "auto" asks in order and stops."""

import math
from unittest.mock import Mock

import pytest
import standin
from callers import run_python, run_threads

from gpurbf import BackendUnavailable, config_context
from gpurbf.layer import backends
from gpurbf.layer.backends import CPUS, GPUS, LOADERS, Backend, get_backend
from gpurbf.layer.backends.cuda import check
from gpurbf.layer.backends.numba import cpu_kernel


@pytest.fixture
def asked(monkeypatch):
    """Names of backends in the order in which their loaders are called; all of them can run."""
    names = []
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    monkeypatch.setattr(check, "trusted", lambda name: standin.RIGHT)
    for name in LOADERS:
        made = Backend(name, None, "", None, None, None, None)
        monkeypatch.setitem(LOADERS, name, lambda own=made: names.append(own.name) or own)
    backends._attempt.cache_clear()
    yield names
    backends._attempt.cache_clear()


def with_gpu(monkeypatch, there):
    monkeypatch.setattr("gpurbf.layer.backends.no_gpu", lambda: None if there else "no CuPy")


@pytest.mark.parametrize(
    ("gpu", "n_centers", "kernel", "taken"),
    [
        (False, None, "avx2", "numba"),
        (False, 1, "avx2", "numba"),
        (False, None, "generic", "mkl"),
        (True, None, "avx2", "cupy"),
        (True, 107, "generic", "cupy"),
        (True, 106, "avx2", "numba"),
        (True, 106, "generic", "mkl"),
    ],
)
def test_auto_asks_nobody_after_the_first_that_can_run(
    asked, monkeypatch, gpu, n_centers, kernel, taken
):
    with_gpu(monkeypatch, gpu)
    monkeypatch.setattr(cpu_kernel, "choose_kernel", lambda: (kernel, ""))
    backend, reason = get_backend("auto", n_centers)
    assert backend.name == taken and asked == [taken]
    assert reason.startswith("chosen automatically")
    assert ("worth the transfer from 107 centers" in reason) == gpu
    assert ("not worth" in reason) == (gpu and taken != "cupy")
    assert get_backend("auto", n_centers) == (backend, reason) and asked == [taken]


ERRORS = [BackendUnavailable, ImportError, OSError, RuntimeError, ValueError, AttributeError]


@pytest.mark.parametrize("kind", ERRORS)
def test_whatever_a_loader_raises_it_is_not_available(asked, monkeypatch, kind):
    error = kind("half installed")
    monkeypatch.setattr(cpu_kernel, "choose_kernel", lambda: ("avx2", ""))
    with_gpu(monkeypatch, True)
    for name in ("cupy", "numba-cuda", "numba"):
        monkeypatch.setitem(LOADERS, name, Mock(side_effect=error))
    backend, reason = get_backend("auto")
    said = ("" if kind is BackendUnavailable else f"{kind.__name__}: ") + "half installed"
    assert backend.name == "mkl" and reason.endswith("; numba cannot run here")
    assert all(f"{name} is not used: {said}" in reason for name in GPUS)
    assert all(get_backend(name)[0].name == name for name in ("mkl", "numpy"))
    for name in 2 * [*GPUS, "numba"]:
        with pytest.raises(BackendUnavailable) as refusal:
            get_backend(name)
        assert str(refusal.value) == said and refusal.value.__cause__ is error
        monkeypatch.setenv("GPURBF_BACKEND", name)
        with pytest.raises(BackendUnavailable, match=f"GPURBF_BACKEND={name}: {said}"):
            get_backend()
        with config_context(backend=name):
            with pytest.raises(BackendUnavailable, match=f"config backend='{name}': {said}"):
                get_backend()


@pytest.mark.parametrize(
    ("kernel", "order"), [("amx", "numba mkl numpy"), ("generic", "mkl numpy numba")]
)
def test_where_nothing_can_run_every_reason_is_named_tiles_in_plain_code_last(
    asked, monkeypatch, kernel, order
):
    with_gpu(monkeypatch, False)
    monkeypatch.setattr(cpu_kernel, "choose_kernel", lambda: (kernel, ""))
    for name in CPUS:
        monkeypatch.setitem(LOADERS, name, Mock(side_effect=OSError("not today")))
    with pytest.raises(BackendUnavailable) as refusal:
        get_backend("auto")
    reasons = [f"{name}: OSError: not today" for name in order.split()]
    assert str(refusal.value) == "; ".join(reasons)


def test_an_interrupt_of_a_loader_is_no_answer(asked, monkeypatch):
    monkeypatch.setitem(LOADERS, "numpy", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        get_backend("numpy")
    monkeypatch.setitem(LOADERS, "numpy", LOADERS["mkl"])
    assert get_backend("numpy")[0].name == "mkl"


def test_a_gpu_is_worth_the_transfer_by_arithmetic_on_rates():
    """With so many centers both sides take the same time for an input."""
    m = backends.centers_worth_a_transfer(device=1e13, host=2e12, copy=1e10)
    assert 4 / 1e10 + 2 * m / 1e13 == pytest.approx(2 * m / 2e12)
    assert backends.centers_worth_a_transfer(device=1e12, host=1e12, copy=1e10) == math.inf


def test_a_name_is_obeyed_whoever_says_it(asked, monkeypatch):
    assert get_backend("numpy")[1] == "backend='numpy'"
    monkeypatch.setenv("GPURBF_BACKEND", "mkl")
    assert get_backend("auto") == (get_backend("mkl")[0], "GPURBF_BACKEND=mkl")
    with config_context(backend="numpy"):
        assert get_backend("auto") == (get_backend("numpy")[0], "config backend='numpy'")
        with pytest.raises(ValueError, match="Unknown backend 'abacus'"):
            get_backend("abacus")
    assert asked == ["numpy", "mkl"]


def test_threads_that_ask_at_once_get_one_backend(asked):
    found = run_threads(*8 * [lambda: get_backend("auto", 1)[0]])
    assert len(asked) == 1 and all(backend is found[0] for backend in found)


@pytest.mark.parametrize("cupy", ["missing", "without a GPU"])
def test_auto_imports_no_library_that_it_does_not_take(tmp_path, monkeypatch, cupy):
    """With CuPy there too: nothing is imported to find that there is no device for it."""
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    if cpu_kernel.choose_kernel()[0] == "generic":
        pytest.skip("the CPU has no vector instructions that the tiles use")
    if cupy == "missing" and backends.no_gpu() is None:
        pytest.skip("there is a GPU")
    if cupy != "missing":
        (tmp_path / "cupy.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    code = """
        import sys
        import numpy as np
        from gpurbf import SVC, RBFClassifier
        from gpurbf.layer.backends import get_backend, no_gpu

        X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
        SVC().fit(X, y).predict(X)
        RBFClassifier(10).fit(X, y).predict(X)
        n_centers = None if no_gpu() else 1
        assert get_backend("auto", n_centers)[0].name == "numba"
        print([name for name in sys.modules if name.startswith(("cupy", "numba_cuda"))])
        print([name for name in sys.modules if name.startswith("gpurbf.layer.backends.")])
        from gpurbf.runtime.blas_threads import blas_libraries
        print([library.internal_api for library in blas_libraries().lib_controllers])
"""
    # The folder of the process is first on its path.
    libraries, imported, blas = run_python(code, cwd=tmp_path).stdout.splitlines()
    assert libraries == "[]"
    for name in ("cuda.cupy_", "cuda.numba_cuda", "blas.mkl"):
        assert f"'gpurbf.layer.backends.{name}'" not in imported
    assert "mkl" not in blas or "mkl" in run_python("import numpy; numpy.show_config()").stdout
