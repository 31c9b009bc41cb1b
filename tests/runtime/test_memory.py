"""What cannot fit in memory is refused before work begins; each thread has memory for kernels."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from callers import run_threads

from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime import memory


@pytest.fixture
def free(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda **_: 65e6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [RBFClassifier(3000, centers="random", gamma=1.0), FSVC(1e-6, shuffle=False)], ids=str
)
def test_centers_that_cannot_fit_name_the_bytes(monkeypatch, model):
    X = np.random.default_rng(0).normal(size=(3000, 2))
    y = (X[:, 0] > 0).astype(int)
    monkeypatch.setattr(memory, "free_bytes", lambda **_: 100e6)
    monkeypatch.setattr(HiddenLayer, "gram", lambda *_: pytest.fail("work began"))
    with pytest.raises(
        MemoryError, match=r"3,000 centers.* 0\.1 GB, but only 0\.1 GB are free.*cg"
    ):
        model.fit(X, y)


def test_small_requests_do_not_ask_for_the_free_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda **_: pytest.fail("asked"))
    memory.check_room(1 << 20, "a little", "nothing")


def test_linux_tells_the_free_memory():
    free = memory.free_bytes()
    assert free == float("inf") or 1e6 < free < 1e15


def test_a_system_that_tells_other_numbers_is_not_checked(monkeypatch):
    """No MemAvailable, as in Linux before 3.14 and WSL 1: it counted as no memory at all."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 8 kB\nSwapFree: 8 kB")
    monkeypatch.setattr(memory, "_bytes_of_groups", lambda: float("inf"))
    assert memory.free_bytes() == memory.free_bytes(swap=True) == float("inf")


@pytest.mark.parametrize(
    ("model", "name", "n_classes", "n", "gigabytes"),
    [
        (RBFLayer(300), "transform", 300, 90_000, "0.2"),
        (RBFClassifier(300), "predict_proba", 300, 90_000, "0.4"),
        (RBFClassifier(300), "decision_function", 300, 90_000, "0.4"),
        (SVC(gamma=1.0, decision_function_shape="ovo"), "decision_function", 300, 600, "0.4"),
        (SVC(gamma=1.0, probability=True), "predict_proba", 3, 1_500_000, "0.1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stored", [np.asarray, sp.csr_array])
@pytest.mark.filterwarnings("ignore:The `prob:FutureWarning")
def test_results_that_cannot_fit_are_refused_before_work(
    free, monkeypatch, model, name, n_classes, n, gigabytes, stored
):
    X = np.random.default_rng(0).normal(size=(600, 3))
    model.fit(stored(X), np.arange(600) % n_classes)
    monkeypatch.setattr(HiddenLayer, "_blocks", lambda *_: pytest.fail("work began"))
    with pytest.raises(MemoryError, match=rf"{n:,} samples .* would take {gigabytes} GB.*fewer"):
        getattr(model, name)(stored(np.repeat(X[:1], n, axis=0)))


@pytest.mark.parametrize("model", [SVC(), RBFClassifier(solver="lms")], ids=str)
def test_many_classes_that_cannot_fit_are_refused(free, model):
    X, y = np.arange(20_000.0)[:, None], np.arange(20_000) // 10
    with pytest.raises(MemoryError, match=r"(2,000 classes|20,000 samples) .*RBFClassifier"):
        model.fit(X, y)


def test_a_thread_has_the_same_memory_for_each_kernel_and_no_other_thread_has_it():
    held, start = memory.scratch(1000)
    assert memory.scratch(10)[1] == start and start % 64 == 0
    assert held.ctypes.data <= start and start + 1000 <= held.ctypes.data + held.nbytes
    ((_, other),) = run_threads(lambda: memory.scratch(1000))
    assert abs(other - start) >= 1000
    larger, begin = memory.scratch(held.nbytes)
    assert larger is not held and begin + held.nbytes <= larger.ctypes.data + larger.nbytes
    memory.scratch(1 << 25)
    assert memory.scratch(10)[0] is larger  # much is not kept
