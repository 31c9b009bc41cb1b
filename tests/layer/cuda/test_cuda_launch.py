"""What stands before the first launch: small grids, and the libraries that compile."""

import importlib
import os
import sys
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import standin
from callers import run_python

from benchmarks import _cuda_naive_kernels
from gpurbf import BackendUnavailable
from gpurbf.layer.backends.cuda import numba_cuda
from gpurbf.runtime.jit import cuda_api
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import Recorder


def test_a_small_grid_is_no_warning_unless_a_user_wants_one(monkeypatch):
    _cuda_naive_kernels.pairs[1, 64]  # warnings are errors
    monkeypatch.setenv("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "1")
    monkeypatch.setattr(cuda_api.settings, "CUDA_LOW_OCCUPANCY_WARNINGS", 1)
    importlib.reload(cuda_api)
    assert cuda_api.settings.CUDA_LOW_OCCUPANCY_WARNINGS == 1


def test_a_missing_compiler_is_named_with_what_brings_it(monkeypatch):
    missing = Mock(side_effect=OSError("libnvvm.so: cannot open shared object file"))
    monkeypatch.setitem(sys.modules, "cupy", standin.make()["cupy"])
    monkeypatch.setattr(cuda_api, "find_compiler", missing)
    with pytest.raises(BackendUnavailable) as told:
        numba_cuda.load()
    for words in ("libNVVM", "libnvvm.so", 'pip install ".[cuda12]"', ".[cuda13]", "CUDA_HOME"):
        assert words in str(told.value)
    assert "SIMULATE" not in str(told.value).upper()


def test_the_compiler_is_looked_for_where_numba_finds_it(compiled):
    cuda_api.find_compiler()


@pytest.mark.parametrize(
    "home, nvcc, found", [("", True, True), ("", False, False), ("mine", True, False)]
)
def test_a_toolkit_is_found_by_its_nvcc(monkeypatch, tmp_path, home, nvcc, found):
    """What numba-cuda does with NVRTC from a wheel and libNVVM in a toolkit alone."""
    toolkit = str(tmp_path)
    path = f"{toolkit}/bin/nvcc" if nvcc else None
    monkeypatch.setattr(cuda_api.shutil, "which", lambda *_, **__: path)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", home)
    if not home:
        monkeypatch.delenv("CUDA_HOME")

    def load():
        if os.environ.get("CUDA_HOME") != toolkit:
            raise OSError("nvrtc found via site-packages, cannot infer CUDA_HOME")

    monkeypatch.setattr(cuda_api, "_load_compiler", load)
    with nullcontext() if found else pytest.raises(OSError, match="cannot infer"):
        cuda_api.find_compiler()
    assert os.environ.get("CUDA_HOME", "") == (toolkit if found else home)


def test_kernels_compile_where_numpy_has_no_row_stack(compiled):
    """As from NumPy 2.5 on, which Numba itself knows; numba-cuda up to 0.30.4 does not."""
    run_python("""
        import numba.np.arrayobj, numpy as np, scipy.linalg
        vars(np).pop('row_stack', None)
        from gpurbf.runtime.jit import cuda_api
        kernel = cuda_api.jit(lambda: None).py_func
        assert cuda_api.cuda.compile_ptx(kernel, (), cc=(9, 0))
        assert not hasattr(np, 'row_stack')
    """)


def test_a_kernel_of_a_device_is_itself_where_a_profile_records():
    """A profile wraps kernels that run without Python's lock; these are launched with a grid."""
    steps = lazy_module("gpurbf.svm._cuda_smo_kernels")
    with Recorder():
        assert steps.select[1, 32].dispatcher is steps.select
