"""Every CPU kernel in turn, as GPURBF_CPU_KERNEL would choose it."""

import pytest

from gpurbf.backends import cpu


@pytest.fixture(params=list(cpu.FEATURES))
def kernel(request, monkeypatch):
    """The name of a kernel that is now the forced one; skipped where the machine cannot run it."""
    if why := cpu.missing(request.param):
        pytest.skip(f"kernel {request.param}: {why}")
    monkeypatch.setenv(cpu.VARIABLE, request.param)
    return request.param
