"""Every CPU kernel in turn, as GPURBF_CPU_KERNEL would choose it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpurbf.layer.backends.numba import cpu_kernel

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent


@pytest.fixture(scope="module")
def behind_library(tmp_path_factory):
    """A maker of `run(*arguments)`: Python where a library, made of C beside its plugin, acts.

    ``variable`` of the environment names the library. The result is None if C does not compile.
    """

    def make(source, variable, *options):
        if not (compiler := shutil.which("cc")):
            pytest.skip(f"{source} needs a C compiler")
        library, source = tmp_path_factory.mktemp("library") / "made.so", HERE / source
        command = [compiler, "-O2", "-Wall", "-Wextra", *options, "-shared", "-fPIC", source]
        if subprocess.run([*command, "-o", library]).returncode:
            return None
        path = os.pathsep.join([str(source.parent), *sys.path])
        environment = os.environ | {variable: str(library), "PYTHONPATH": path}
        environment.pop(cpu_kernel.VARIABLE, None)
        environment.pop("PYTEST_ADDOPTS", None)  # .ci/run's, for a plugin that is left out here
        options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
        return lambda *arguments: subprocess.run([sys.executable, *arguments], **options)

    return make


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request):
    """The dtypes of activations, in turn."""
    return request.param


@pytest.fixture(params=["euclidean", "manhattan", "dot"])
def metric(request):
    """The metrics in turn."""
    return request.param


@pytest.fixture(params=list(cpu_kernel.KERNELS))
def kernel(request, monkeypatch):
    """The name of a kernel that is now the forced one; skipped where the machine cannot run it."""
    if why := cpu_kernel.missing(request.param):
        pytest.skip(f"kernel {request.param}: {why}")
    monkeypatch.setenv(cpu_kernel.VARIABLE, request.param)
    return request.param
