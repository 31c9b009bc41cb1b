"""Where SVC's steps are made: by which rule, within which memory, and what is said of it."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gpurbf
from gpurbf.layer import backends
from gpurbf.svm import cuda_pairs
from gpurbf.svm.cuda_pairs import problems_of

X, y = (A[:200] for A in load_digits(return_X_y=True))


def test_what_is_at_work_is_within_the_memory():
    N, starts = 60_000, np.arange(0, 66_000, 6000)
    problems = problems_of(starts, np.ones(N), list(combinations(range(10), 2)))
    size = problems.sizes.max()
    assert cuda_pairs.pairs_that_fit(N, 4, problems, 80e9) == 45
    width = cuda_pairs.pairs_that_fit(N, 4, problems, 29e9)
    assert 4 * N * N + width * size * (4 * size + 16) < 29e9 and width == 45
    assert cuda_pairs.pairs_that_fit(N, 4, problems, 20e9) == 0


def test_auto_takes_no_gpu_and_does_not_ask_for_one(monkeypatch):
    monkeypatch.setattr(backends, "no_gpu", lambda: None)
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    for name in backends.GPUS:
        monkeypatch.setitem(backends.LOADERS, name, lambda name=name: pytest.fail(name))
    model = gpurbf.SVC(gamma=1e-3).fit(X, y)
    assert model.backend_ in backends.CPUS and "a GPU only by name" in model.backend_info_


def test_without_numba_cuda_the_CPU_steps_and_it_is_said(cupy):
    model = gpurbf.SVC(gamma=1e-3, backend="cupy").fit(X, y)
    assert model.backend_ == "cupy"
    assert "steps on the CPU: those on the GPU need numba-cuda (the stand-in" in model.backend_info_
