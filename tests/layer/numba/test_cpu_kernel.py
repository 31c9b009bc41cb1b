"""The choice of a kernel: by features, by force, and refused with the reason."""

import subprocess

import pytest

from gpurbf import BackendUnavailable
from gpurbf.layer.backends.numba import cpu_kernel
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


def test_forced_kernel_is_the_one_that_runs(kernel):
    assert cpu_kernel.choose_kernel() == (kernel, f"{cpu_kernel.VARIABLE}={kernel}")


@pytest.mark.parametrize("name", ["avx512vnni", "avxvnni", "avx2", "i8mm", "dotprod", "generic"])
def test_best_kernel_that_the_features_allow_is_chosen(machine, name):
    machine(*cpu_kernel.FEATURES[name])
    assert cpu_kernel.choose_kernel()[0] == name


def test_forcing_a_kernel_that_the_cpu_lacks_says_what_is_missing(machine, monkeypatch):
    machine("avx2", "fma")
    monkeypatch.setenv(cpu_kernel.VARIABLE, "avx512vnni")
    with pytest.raises(BackendUnavailable, match=r"lacks avx512bw, .*avx512vnni"):
        cpu_kernel.choose_kernel()


def test_forcing_an_unknown_kernel_lists_the_known_ones(monkeypatch):
    monkeypatch.setenv(cpu_kernel.VARIABLE, "sse9")
    with pytest.raises(ValueError, match="amx, avx512vnni, avxvnni, avx2, i8mm, dotprod, generic"):
        cpu_kernel.choose_kernel()


@pytest.mark.parametrize(
    ("system", "said", "features"),
    [
        ("Linux", "Features\t: fp asimd crc32 asimddp sve i8mm\n", {"neon", "dotprod", "i8mm"}),
        ("Linux", "Features\t: fp asimd crc32\n", {"neon"}),
        (
            "Darwin",
            "hw.optional.neon: 1\nhw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\n",
            {"neon", "dotprod"},
        ),
    ],
)
def test_the_system_tells_what_an_arm_cpu_has(monkeypatch, tmp_path, system, said, features):
    (tmp_path / "cpuinfo").write_text(said)
    monkeypatch.setattr(cpu, "Path", lambda path: tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu.platform, "system", lambda: system)
    monkeypatch.setattr(cpu.platform, "machine", lambda: "arm64")
    done = subprocess.CompletedProcess("sysctl", 0, said)
    monkeypatch.setattr(cpu.subprocess, "run", lambda *args, **kwargs: done)
    assert cpu.cpu_features.__wrapped__() == features
