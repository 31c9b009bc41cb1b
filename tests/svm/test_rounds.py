"""Rounds in compiled calls: the same answers as those in Python, whatever ends a call."""

import gc
import weakref
from contextlib import nullcontext
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from gpurbf import SVC
from gpurbf.runtime import threads
from gpurbf.runtime.stages import Recorder
from gpurbf.svm import _round_kernels, binary, pairs, row_cache

LABELS = np.repeat(np.arange(4), 1100)  # pairs of more samples than a single set


def numbers(dtype=np.float64):
    X = np.random.default_rng(0).normal(size=(4400, 20))
    return (X + LABELS[:, None] % 3).astype(dtype)


def images():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (4400, 300)) * (rng.random(300) < 0.3)
    return np.clip(X + 9 * LABELS[:, None] * (X > 0), 0, 255).astype(np.uint8)


@pytest.fixture
def outcomes(monkeypatch):
    """How the calls ended."""
    ended, run = [], _round_kernels.rounds

    def rounds(*args):
        ended.append((result := run(*args))[0])
        return result

    monkeypatch.setattr(_round_kernels, "rounds", rounds)
    return ended


def fitted(X, n_jobs=1, **options):
    model = SVC(n_jobs=n_jobs, **options).fit(X, LABELS)
    return [model.support_, model.dual_coef_, model.intercept_, model.n_iter_]


@pytest.mark.filterwarnings("ignore:Solver terminated early")
@pytest.mark.parametrize(
    ("X", "options", "outcome"),
    [
        (numbers(), {}, _round_kernels.LOOK),
        (numbers(np.float32), {"kernel": "laplacian"}, _round_kernels.GROW),
        (numbers(), {"kernel": "sigmoid", "gamma": 0.002}, _round_kernels.GROW),
        (images(), {}, _round_kernels.GROW),
        (images(), {"C": 100.0, "tol": 1e-2}, _round_kernels.STEP),
        (numbers(), {"max_iter": 700}, _round_kernels.LOOK),
        (numbers(), {"C": 1e4, "max_iter": 20000}, _round_kernels.LOOK),
        (numbers(), {"cache_size": 1}, _round_kernels.GROW),
    ],
)
def test_the_bits_are_those_of_rounds_in_python(X, options, outcome, outcomes, monkeypatch):
    monkeypatch.setattr(pairs, "keeps_rows", lambda *_: True)
    compiled = fitted(X, **options)
    assert outcome in outcomes
    monkeypatch.setattr(pairs.Schedule, "needs_no_help", lambda self: False)
    np.testing.assert_equal(compiled, fitted(X, **options))


def test_a_pair_may_change_between_both_at_any_time(outcomes, monkeypatch):
    expected, draws = fitted(X := numbers()), np.random.default_rng(0)
    calls = len(outcomes)
    monkeypatch.setattr(pairs.Schedule, "needs_no_help", lambda self: draws.random() < 0.5)
    np.testing.assert_equal(fitted(X), expected)
    assert calls < len(outcomes) < 2 * calls


def test_pairs_smaller_than_a_set_keep_its_kernel_between_two_calls(outcomes, monkeypatch):
    """The set is all of the pair. A later call's memory for it was new, of any numbers."""
    make_room = row_cache.Rounds._make_room

    def made(self, samples):
        make_room(self, samples)
        self._K[:] = 0.5

    monkeypatch.setattr(row_cache.Rounds, "_make_room", made)
    monkeypatch.setattr(pairs, "_groups", lambda *_: None)
    X, y = np.random.default_rng(0).normal(size=(1200, 5)), np.arange(1200) % 8
    compiled = SVC(C=100, n_jobs=1).fit(X, y)
    assert _round_kernels.STEP in outcomes
    monkeypatch.setattr(pairs.Schedule, "needs_no_help", lambda self: False)
    python = SVC(C=100, n_jobs=1).fit(X, y)
    np.testing.assert_array_equal(compiled.n_iter_, python.n_iter_)
    np.testing.assert_array_equal(compiled.dual_coef_, python.dual_coef_)


def test_nothing_of_a_fit_waits_for_the_garbage_collector(outcomes, monkeypatch):
    """A solver holds all the memory of the rows."""
    solve, solvers = pairs.PairsSolver.solve, []
    monkeypatch.setattr(
        pairs.PairsSolver, "solve", lambda self: solvers.append(weakref.ref(self)) or solve(self)
    )
    gc.collect()
    gc.disable()
    try:
        fitted(numbers())
        assert outcomes and [solver() for solver in solvers] == [None]
    finally:
        gc.enable()


def test_two_classes_keep_rows_from_the_same_set_on(outcomes, monkeypatch):
    """Compiled rounds follow; threads and their number have no influence."""
    monkeypatch.setattr(pairs, "rows_in_doubt", lambda *_: 1000)
    X, y = numbers(), LABELS > 1
    models = [SVC(C=10.0, n_jobs=n).fit(X, y) for n in (1, 2)]
    assert outcomes
    assert np.array_equal(models[0].dual_coef_, models[1].dual_coef_)
    monkeypatch.setattr(pairs, "rows_in_doubt", lambda *_: None)
    kept = SVC(C=10.0).fit(X, y)
    assert not np.array_equal(models[0].dual_coef_, kept.dual_coef_)
    np.testing.assert_allclose(models[0].decision_function(X), kept.decision_function(X), atol=2e-3)


def test_rounding_is_judged_as_compiled_rounds_judge_it():
    for squares in np.random.default_rng(0).lognormal(0, 5, 10_000).tolist():
        limit = binary.ROUNDING_DEVIATIONS / binary.MAX_ROUNDING_PART * np.sqrt(squares)
        assert binary.rounding_is_small(1.0, squares, limit)
        assert not binary.rounding_is_small(1.0, squares, np.nextafter(limit, 0))


@pytest.mark.usefixtures("cores")  # Numba's number of threads is not asked for
def test_more_than_four_threads_have_more_memory_for_rows(monkeypatch):
    found, budget = [], pairs.Budget
    monkeypatch.setattr(pairs, "Budget", lambda *own: found.append(own[1]) or budget(*own))
    # A recorder plans for sixteen threads.
    for cores, recorder in zip((1, 4, 16, 4), (None, None, None, Recorder())):
        monkeypatch.setattr(threads, "_cores", lambda cores=cores: cores)
        with recorder or nullcontext():
            fitted(numbers(), n_jobs=None, cache_size=50)
    assert found == [megabytes * 2**20 for megabytes in (50, 50, 200, 50)]


def test_as_many_pairs_run_at_a_time_as_keep_their_rows(monkeypatch):
    kernel, own = SimpleNamespace(linear=False, cost=10.0, largest=1.0), np.full(5, 1000)
    for cores, megabytes, number in ((2, 200, 2), (8, 200, 8), (64, 200, 10), (8, 1, 2)):
        monkeypatch.setattr(pairs, "planned_threads", lambda cores=cores: cores)
        every = list(combinations(range(5), 2))
        assert pairs._at_once(kernel, own, every, megabytes * 1e6) == number


@pytest.mark.usefixtures("cores")
def test_pairs_of_near_classes_are_expected_to_take_longest(monkeypatch):
    found, schedule = [], pairs.Schedule
    monkeypatch.setattr(pairs, "Schedule", lambda *own: found.append(own[-1]) or schedule(*own))
    for cores in (16, 2):
        monkeypatch.setattr(threads, "_cores", lambda cores=cores: cores)
        X = (
            np.random.default_rng(0).normal(size=(4400, 20))
            + np.array([0.0, 0.4, 1.2, 3.0])[LABELS, None]
        )
        fitted(X, n_jobs=None, gamma=0.01)
    names = list(combinations(range(4), 2))
    ordered = [names[p] for p in np.argsort(-found[0])]
    assert ordered == [(0, 1), (1, 2), (0, 2), (2, 3), (1, 3), (0, 3)]
    assert found[1] is None
