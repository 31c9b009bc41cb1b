"""Every CPU kernel in turn, as GPURBF_CPU_KERNEL would choose it."""

import pytest

from gpurbf.layer.backends.numba import cpu_kernel


@pytest.fixture(params=list(cpu_kernel.KERNELS))
def kernel(request, monkeypatch):
    """The name of a kernel that is now the forced one; skipped where the machine cannot run it."""
    if why := cpu_kernel.missing(request.param):
        pytest.skip(f"kernel {request.param}: {why}")
    monkeypatch.setenv(cpu_kernel.VARIABLE, request.param)
    return request.param
