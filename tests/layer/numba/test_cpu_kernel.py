"""The choice of a kernel: by features, by force, and refused with the reason."""

import pytest

from gpurbf import BackendUnavailable
from gpurbf.layer.backends.numba import cpu_kernel


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


@pytest.mark.parametrize("name", ["avx512vnni", "avxvnni", "avx2", "generic"])
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
    with pytest.raises(ValueError, match="amx, avx512vnni, avxvnni, avx2, generic"):
        cpu_kernel.choose_kernel()
