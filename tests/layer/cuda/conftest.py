"""What the tests of compiled kernels share.

The tests in Numba's simulator need a variable of their own: test_cuda_simulator.py runs them.
"""

import contextlib
import importlib.metadata
import os
import subprocess
from types import SimpleNamespace

import pytest

from gpurbf.layer.backends.cuda import device

# Numba's simulator compiles nothing.
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
collect_ignore = ["test_cuda_ptx.py" if SIMULATED else "simulated"]


def sm(capability):
    """The name of an architecture."""
    return "sm_" + "".join(map(str, capability))


@pytest.fixture
def small_tiles(monkeypatch):
    """Several tiles of small data."""
    monkeypatch.setattr(device, "_LEAST", 16)
    monkeypatch.setattr(device, "_HOST_BYTES", 0)


@pytest.fixture(scope="session")
def compiled():
    """A function that compiles a kernel for an architecture, whatever GPU there is."""
    pytest.importorskip("numba_cuda", reason="PTX: needs numba-cuda, which the extra `test` brings")
    from numba.cuda import dispatcher

    from gpurbf.runtime.jit import cuda_api

    try:
        cuda_api.cuda.compile_ptx(lambda: None, (), cc=(9, 0))
    except Exception as error:
        reason = str(error).strip().splitlines() or [repr(error)]
        pytest.skip(f"PTX: numba.cuda has no compiler here ({reason[0]}); the extra `test` has one")

    def compile_ptx(kernel, signature, capability):
        with pytest.MonkeyPatch.context() as patch:
            # Numba asks the device for the capability of functions that a kernel calls.
            device = SimpleNamespace(compute_capability=capability[:2])
            patch.setattr(dispatcher, "get_current_device", lambda: device)
            text, _ = cuda_api.cuda.compile_ptx(kernel.py_func, signature, cc=capability)
        if f".target {sm(capability)}\n" not in text:
            assert capability >= (10, 0)
            pytest.skip(f"{sm(capability)}: newer than this numba.cuda or its toolkit")
        return text

    return compile_ptx


@pytest.fixture
def assembled(tmp_path):
    """What ptxas says of PTX, which it compiles without a spill.

    It is as new as the NVVM that chose the version of the PTX.
    """
    for package in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            files = importlib.metadata.files(package) or []
            if found := [file for file in files if file.name in ("ptxas", "ptxas.exe")]:
                break
    else:
        pytest.skip("ptxas: no nvidia-cuda-nvcc wheel; the extra `test` has one")

    def assemble(text, capability, *limit):
        source = tmp_path / "kernel.ptx"
        source.write_text(text)
        command = [str(found[0].locate()), "-v", f"-arch={sm(capability)}", *limit, str(source)]
        command += ["-o", str(source.with_suffix(".cubin"))]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        report = done.stdout
        assert done.returncode == 0, report
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
        return report

    return assemble
