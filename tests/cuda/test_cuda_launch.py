"""What stands before the first launch: grids of any size, and the libraries that compile."""

import sys

import pytest
import standin

from gpurbf.backends import BackendUnavailable, numba_cuda
from gpurbf.kernels.cuda import api, pairs

pytestmark = pytest.mark.skipif(api.SIMULATED, reason="Numba's simulator compiles nothing")


def test_a_small_grid_is_no_warning():
    pairs.pairs[1, 64]  # warnings are errors


def test_a_user_s_own_wish_to_be_warned_stands(monkeypatch):
    import importlib

    monkeypatch.setenv("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "1")
    monkeypatch.setattr(api.settings, "CUDA_LOW_OCCUPANCY_WARNINGS", 1)
    importlib.reload(api)
    assert api.settings.CUDA_LOW_OCCUPANCY_WARNINGS == 1


def test_a_missing_compiler_is_named_with_what_brings_it(monkeypatch):
    def missing():
        raise OSError("libnvvm.so: cannot open shared object file")

    monkeypatch.setitem(sys.modules, "cupy", standin.make()["cupy"])
    monkeypatch.setattr(api, "find_compiler", missing)
    with pytest.raises(BackendUnavailable) as told:
        numba_cuda.load()
    for words in ("libNVVM", "libnvvm.so", 'pip install ".[cuda12]"', ".[cuda13]", "CUDA_HOME"):
        assert words in str(told.value)
    assert "SIMULATE" not in str(told.value).upper()


def test_the_compiler_is_looked_for_where_numba_finds_it():
    try:
        api.cuda.compile_ptx(lambda: None, (), cc=(9, 0))
    except Exception as error:
        pytest.skip(f"PTX: numba.cuda has no compiler here ({type(error).__name__})")
    api.find_compiler()
