"""The choice of a kernel: by features, by force, and refused with the reason."""

import subprocess
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from gpurbf import BackendUnavailable
from gpurbf.layer import backends
from gpurbf.layer.backends import get_backend
from gpurbf.layer.backends.cuda import check
from gpurbf.layer.backends.numba import amx, cpu_kernel
from gpurbf.runtime import cpu


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be on a CPU with these features."""

    def pretend(*features):
        monkeypatch.setattr(cpu_kernel, "cpu_features", lambda: frozenset(features))
        cpu_kernel.missing.cache_clear()

    monkeypatch.delenv(cpu_kernel.VARIABLE, raising=False)
    yield pretend
    cpu_kernel.missing.cache_clear()


def on_arm(monkeypatch, system):
    """Pretend to be on a system with an ARM CPU."""
    monkeypatch.setattr(cpu.platform, "system", lambda: system)
    monkeypatch.setattr(cpu.platform, "machine", lambda: "arm64")


def test_forced_kernel_is_the_one_that_runs(kernel):
    assert cpu_kernel.choose_kernel() == (kernel, f"{cpu_kernel.VARIABLE}={kernel}")


@pytest.mark.parametrize("name", ["avx512vnni", "avxvnni", "avx2", "i8mm", "dotprod", "generic"])
def test_best_kernel_that_the_features_allow_is_chosen(machine, name):
    machine(*cpu_kernel.KERNELS[name].features.split())
    assert cpu_kernel.choose_kernel()[0] == name


def test_forcing_a_kernel_that_the_cpu_lacks_says_what_is_missing(machine, monkeypatch):
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    machine("avx2", "fma")
    monkeypatch.setenv(cpu_kernel.VARIABLE, "avx512vnni")
    for choose in (cpu_kernel.choose_kernel, lambda: get_backend("auto")):
        with pytest.raises(BackendUnavailable, match=r"lacks avx512bw, .*avx512vnni"):
            choose()
    # Nor is a GPU checked beside it: the verdict would be kept.
    monkeypatch.setattr(backends, "no_gpu", lambda: None)
    monkeypatch.setattr(check, "trusted", pytest.fail)
    with pytest.raises(BackendUnavailable, match=r"lacks avx512bw, .*avx512vnni"):
        get_backend("auto")


def test_denied_permission_for_amx_is_a_reason_and_not_a_crash(machine, monkeypatch):
    machine(*(name for own in cpu_kernel.KERNELS.values() for name in own.features.split()))
    monkeypatch.setattr(amx, "permission", lambda: "the system denies the tile registers")
    assert cpu_kernel.choose_kernel()[0] == "avx512vnni"
    monkeypatch.setenv(cpu_kernel.VARIABLE, "amx")
    with pytest.raises(BackendUnavailable, match="denies the tile registers"):
        cpu_kernel.choose_kernel()


def test_forcing_an_unknown_kernel_lists_the_known_ones_and_takes_no_other_backend(monkeypatch):
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    monkeypatch.setenv(cpu_kernel.VARIABLE, "sse9")
    with pytest.raises(ValueError, match="amx, avx512vnni, avxvnni, avx2, i8mm, dotprod, generic"):
        get_backend("auto", 1)


@pytest.mark.parametrize("features", [{"neon", "dotprod", "i8mm"}, {"neon"}])
def test_linux_tells_in_bits_what_an_arm_cpu_has(monkeypatch, features):
    on_arm(monkeypatch, "Linux")
    words = {16: 1 << 1, 26: 1 << 12} if len(features) == 1 else {16: 1 << 1 | 1 << 20, 26: 1 << 13}
    library = SimpleNamespace(getauxval=lambda place: words[place])
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda name: library)
    assert cpu.cpu_features.__wrapped__() == features


def test_macos_tells_in_names_what_an_arm_cpu_has(monkeypatch):
    said = "hw.optional.neon: 1\nhw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\n"
    on_arm(monkeypatch, "Darwin")
    run = Mock(return_value=subprocess.CompletedProcess("sysctl", 1, said))
    monkeypatch.setattr(cpu.subprocess, "run", run)
    assert cpu.cpu_features.__wrapped__() == {"neon", "dotprod"}
    assert run.call_args.args[0][0].startswith("/")  # PATH may lack its folder
    run.side_effect = FileNotFoundError
    assert cpu.cpu_features.__wrapped__() == set()
