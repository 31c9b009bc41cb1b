"""Where SVC's steps are made: by which rule, within which memory, and what is said of it."""

import numpy as np
import pytest
import standin
from sklearn.datasets import load_digits

import gpurbf
from gpurbf.layer import backends
from gpurbf.layer.backends import get_backend
from gpurbf.layer.backends.cuda import check
from gpurbf.svm import cuda_pairs
from gpurbf.svm.cuda_pairs import keep_on_host, problems_of


def sizes_of(*lengths):
    """Problems of pairs of so many samples a class."""
    starts = np.cumsum([0, *lengths])
    pairs = [(a, b) for a in range(len(lengths)) for b in range(a + 1, len(lengths))]
    return problems_of(starts, np.arange(starts[-1]) + 1.0, pairs)


def test_pairs_are_laid_end_to_end():
    problems = sizes_of(2, 3, 1)
    assert problems.starts.tolist() == [0, 5, 8, 12]
    assert problems.samples.tolist() == [0, 1, 2, 3, 4, 0, 1, 5, 2, 3, 4, 5]
    assert problems.y.tolist() == [1, 1, -1, -1, -1, 1, 1, -1, 1, 1, 1, -1]
    assert (problems.C == problems.samples + 1).all()
    assert problems.sizes.tolist() == [5, 3, 4]


def test_the_plan_is_within_the_memory():
    problems = sizes_of(*[6000] * 10)
    N, size = 60_000, problems.sizes.max()
    assert cuda_pairs.plan(N, 4, problems, 80e9) == cuda_pairs.Plan(N, 45)
    for room in (20e9, 8e9, 2e9, 1e9):
        planned = cuda_pairs.plan(N, 4, problems, room)
        assert planned.rows < N and size * planned.width <= planned.rows
        taken = 4 * planned.rows * N + planned.width * size * (4 * size + 16)
        taken += 40 * len(problems.samples) + 4 * size * 45 + 16 * N
        assert taken < room
    assert cuda_pairs.plan(N, 4, problems, 2e8) is None


def test_auto_takes_a_gpu_for_svc_only_as_it_was_measured(monkeypatch):
    def with_rates(**rates):
        monkeypatch.setattr(check, "kept", lambda name: standin.RIGHT._replace(rates=rates))

    monkeypatch.setattr(check, "kept", lambda name: None)
    assert "check-gpu --thorough" in keep_on_host(60_000, 45)
    with_rates(device=1e13, host=1e12, copy=1e10)
    assert "check-gpu --thorough" in keep_on_host(60_000, 45)
    with_rates(svc_device=2.0, svc_host=1.0)
    assert "faster on the CPU" in keep_on_host(60_000, 45)
    with_rates(svc_device=1.0, svc_host=2.0)
    assert keep_on_host(6000, 45) == "" == keep_on_host(60_000, 100)
    # A part of the pairs, as a worker of a cluster has it.
    for smaller in ((5999, 45), (60_000, 44)):
        assert "from 6,000 samples and 45 pairs" in keep_on_host(*smaller)


def test_what_auto_shall_not_take_is_not_asked(monkeypatch):
    monkeypatch.setattr(backends, "no_gpu", lambda: None)
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    for name in backends.GPUS:
        monkeypatch.setitem(backends.LOADERS, name, lambda name=name: pytest.fail(name))
    backend, reason = get_backend("auto", 10**9, "SVC takes one from 5 pairs on")
    assert backend.device == ""
    assert reason == "chosen automatically; SVC takes one from 5 pairs on"


def test_without_numba_cuda_the_CPU_steps_and_it_is_said(cupy):
    X, y = load_digits(return_X_y=True)
    model = gpurbf.SVC(gamma=1e-3, backend="cupy").fit(X[:200], y[:200])
    assert model.backend_ == "cupy"
    assert (
        "; steps on the CPU: those on the GPU need numba-cuda (the stand-in" in model.backend_info_
    )


def test_auto_takes_no_gpu_that_cannot_step(cupy, monkeypatch):
    monkeypatch.setattr("gpurbf.svm.train.keep_on_host", lambda *_: "")
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    X, y = load_digits(return_X_y=True)
    model = gpurbf.SVC(gamma=1e-3).fit(X[:200], y[:200])
    assert model.backend_ in backends.CPUS
    assert "; steps on the CPU: those on the GPU need numba-cuda" in model.backend_info_
