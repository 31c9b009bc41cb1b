"""The choice of a kernel: by features, by force, and refused with the reason."""

import pytest

from gpurbf.backends import BackendUnavailable, cpu


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be on a CPU with these features."""

    def pretend(*features):
        monkeypatch.setattr(cpu, "cpu_features", lambda: frozenset(features))
        cpu.missing.cache_clear()

    monkeypatch.delenv(cpu.VARIABLE, raising=False)
    yield pretend
    cpu.missing.cache_clear()


def test_forced_kernel_is_the_one_that_runs(kernel):
    assert cpu.choose_kernel() == (kernel, f"{cpu.VARIABLE}={kernel}")


@pytest.mark.parametrize("name", ["avx512vnni", "avxvnni", "avx2", "generic"])
def test_best_kernel_that_the_features_allow_is_chosen(machine, name):
    machine(*cpu.FEATURES[name])
    assert cpu.choose_kernel()[0] == name


def test_forcing_a_kernel_that_the_cpu_lacks_says_what_is_missing(machine, monkeypatch):
    machine("avx2", "fma")
    monkeypatch.setenv(cpu.VARIABLE, "avx512vnni")
    with pytest.raises(BackendUnavailable, match=r"lacks avx512bw, .*avx512vnni"):
        cpu.choose_kernel()


def test_forcing_an_unknown_kernel_lists_the_known_ones(monkeypatch):
    monkeypatch.setenv(cpu.VARIABLE, "sse9")
    with pytest.raises(ValueError, match="amx, avx512vnni, avxvnni, avx2, generic"):
        cpu.choose_kernel()
