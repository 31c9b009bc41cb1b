"""Sixty-four threads, whatever cores there are: the bits of one thread, within the same memory."""

import sys

import numpy as np
import pytest
from callers import run_python
from sklearn.datasets import make_classification

from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV
from gpurbf.runtime import threads

MANY = 64
MODELS = {
    "ridge": RBFClassifier(300, random_state=0),
    "path": RBFClassifierCV(300, random_state=0),
    "cg": RBFClassifier(1500, solver="cg", random_state=0),
    "lms": RBFClassifier(300, solver="lms", random_state=0),
    "svc": SVC(),
    "fsvc": FSVC(max_centers=200, random_state=0),
}

# What is fitted twice is compiled, and has its buffers, before the peak is reset.
PEAK = """
import numpy as np
from benchmarks.measure import megabytes, reset_peak
from gpurbf import SVC, RBFClassifier, config_context
from gpurbf.runtime import threads
threads._cores = lambda: 64

rng = np.random.default_rng(0)
y = rng.integers(0, 5, 20_000)
X = rng.integers(0, 200, (5, 100))[y] + rng.integers(0, 56, (20_000, 100))
with config_context(memory=50):
    for data in (X.astype(np.uint8), (X / 255).astype(np.float32)):
        for model in (SVC(cache_size=50), RBFClassifier(500, random_state=0)):
            model.fit(data[:300], y[:300]).predict(data[:300])
            reset_peak()
            before = megabytes("VmHWM")
            model.fit(data, y).predict(data)
            print(megabytes("VmHWM") - before)
"""


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", MODELS)
def test_sixty_four_threads_give_the_bits_of_one(monkeypatch, name, dtype):
    X, y = make_classification(6000, 30, n_informative=10, n_classes=3, random_state=0)
    X = X.astype(dtype) if dtype == np.float32 else np.clip(100 + 20 * X, 0, 255).astype(dtype)
    asked, start = [], threads.start
    monkeypatch.setattr(threads, "start", lambda call: (asked.append(call), start(call)))

    def answers(n_threads, n_jobs):
        monkeypatch.setattr(threads, "_cores", lambda: n_threads)
        model = MODELS[name].set_params(n_jobs=n_jobs).fit(X, y)
        return model.decision_function(X[:500]), model.dual_coef_ if name == "svc" else model.coef_

    alone = answers(1, 1)  # which BLAS's threads are limited to, too
    assert not asked
    for found, expected in zip(answers(MANY, None), alone):
        np.testing.assert_array_equal(found, expected)
    assert asked


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_sixty_four_threads_keep_within_the_memory_that_they_are_given():
    """50 MB for tiles and as much for rows of K; seen: 36, where one thread takes 28."""
    rises = [float(line) for line in run_python(PEAK).stdout.split()]
    assert len(rises) == 4 and max(rises) < 97
