"""SVC's steps in Numba's simulator: the CPU's path to the bit, and solutions as good."""

import threading
from functools import partial
from unittest.mock import MagicMock

import numpy as np
import pytest
from callers import run_threads

from gpurbf import config_context, get_config
from gpurbf.layer.backends import Backend
from gpurbf.layer.backends.cuda.kernels import warps
from gpurbf.svm import _cuda_smo_kernels, binary, cuda_check, cuda_pairs, pairs
from gpurbf.svm._smo_kernels import kkt_violation
from gpurbf.svm._working_set_kernels import next_set
from tests.svm import test_smo
from tests.svm.test_smo import (  # noqa: F401  the tests are made with steps on a device, too
    Matrix,
    assert_optimal,
    problem,
    solve,
    test_a_number_that_is_not_finite_is_an_error,
    test_a_pair_can_be_ended_from_outside,
    test_an_error_in_one_pair_is_raised_and_ends_all,
    test_limit_of_steps_is_kept_exactly,
)


class OnDevice(Matrix):
    """A kernel whose values and steps are on a device, which is NumPy's memory here."""

    on_device = True

    def __init__(self, K, memory=1e9, packed_bytes=0):
        super().__init__(K, ready=False)
        self.memory, self.packed_bytes, self.description = memory, packed_bytes, "simulated"

    def free_bytes(self):
        return self.memory


@pytest.fixture
def kind():
    return OnDevice


@pytest.fixture
def small_sets(monkeypatch):
    monkeypatch.setattr(binary, "MAX_SINGLE_SET", 8)
    monkeypatch.setattr(cuda_pairs, "working_set_size", lambda n: 15)
    monkeypatch.setattr(pairs, "MAX_MATRIX", 0)
    monkeypatch.setattr(cuda_pairs, "_STEPS_PER_LOOK", 400)
    monkeypatch.setattr(cuda_pairs, "_MIN_STEPS_PER_LAUNCH", 20)


def same(found, expected):
    np.testing.assert_equal([*map(vars, found)], [*map(vars, expected)])


@pytest.mark.parametrize("case", ["float32", "twins", "bounds", "indefinite", "limit"])
def test_a_pair_that_is_its_own_set_takes_the_path_of_the_CPU(case, monkeypatch):
    """Also where its steps are several launches."""
    if case in ("twins", "limit"):
        monkeypatch.setattr(cuda_pairs, "_STEPS_PER_LOOK", 20)
        monkeypatch.setattr(cuda_pairs, "_MIN_STEPS_PER_LAUNCH", 4)
    K, starts = problem(sizes=(8, 6, 7))
    copied, turned = np.arange(len(K)) // 3 * 3, np.round(K @ K - 2 * K[::-1, ::-1], 3)
    matrices = {
        "float32": K.astype(np.float32),
        # Of one class and of two: gains and f are equal to the bit.
        "twins": K[np.ix_(copied, copied)],
        "indefinite": (turned + turned.T) / 2,
    }
    K, limit = matrices.get(case, K), {"indefinite": 40, "limit": 7}.get(case, -1)
    C = np.random.default_rng(1).uniform(0.01, 5.0, len(K)) if case == "bounds" else 10.0
    there, kernel = solve(K, starts, C, OnDevice, max_iter=limit)
    same(there, solve(K, starts, C, max_iter=limit)[0])
    assert kernel.description.endswith("steps on the GPU, all pairs of classes side by side")
    assert sum(solution.steps for solution in there) > 10


@pytest.mark.parametrize("ties", [True, False])
def test_working_sets_are_chosen_by_the_rule_of_the_CPU(ties):
    """Of equals the first; the newer half of the last set stays where it is old and odd."""
    n, size, rng = 61, 16, np.random.default_rng(3)
    y, C = np.sign(rng.normal(size=n)), rng.choice([0.5, 1.0, 2.0], n)
    bounds, beta = y * C, y * C * rng.choice([0.0, 0.0, 0.5, 1.0], n)
    # Of both signs and few different numbers, and of one.
    f = np.round(rng.normal(size=n), 1) if ties else rng.normal(size=n) - 9.0
    members, counts = np.zeros((1, size), np.int32), np.zeros(1, np.int32)
    state = _cuda_smo_kernels.Pairs(
        np.array([0, n]), np.arange(n), bounds, beta, f, np.zeros(n, np.int64), np.array([size]),
        members, counts, *[None] * 4,
    )  # fmt: skip
    progress, wave = np.zeros((1, 6)), np.zeros(1, np.int32)
    rules = _cuda_smo_kernels.Rules(1e-3, 1000, 1, 0.0)
    low, high = np.minimum(bounds, 0), np.maximum(bounds, 0)
    previous = np.zeros(0, int)
    for count in (0, 16, 7):
        previous = previous[:count]
        counts[0] = len(previous)
        progress[0, _cuda_smo_kernels.STATE] = _cuda_smo_kernels.RUNNING
        _cuda_smo_kernels.select[1, 3](wave, state, progress, rules)
        numbers = np.array([np.ones(n), low, high, beta, f, f, f])
        violation = kkt_violation(numbers)
        assert progress[0, _cuda_smo_kernels.VIOLATION] == violation
        chosen = members[0, : counts[0]].copy()
        kept = previous[len(previous) // 2 :]
        np.testing.assert_array_equal(chosen[: len(kept)], kept)
        expected = next_set(numbers, previous, True, size, -np.inf)[1]
        assert sorted(chosen) == sorted(expected)
        previous = chosen


@pytest.mark.parametrize("C", [0.1, 10.0])
def test_working_sets_reach_the_same_optimum(C, kind, small_sets):
    test_smo.test_working_sets_reach_the_same_optimum(C, kind, small_sets)


@pytest.mark.parametrize("width", [2, 1])
def test_memory_does_not_change_the_solution(width, small_sets, monkeypatch):
    """All pairs side by side, or some after the others."""
    K, starts = problem(sizes=(14, 12, 10))
    monkeypatch.setattr(cuda_pairs, "_STEPS_PER_LOOK", 10**9)
    expected, _ = solve(K, starts, 1.0, OnDevice)
    monkeypatch.setattr(cuda_pairs, "pairs_that_fit", lambda *_: width)
    same(solve(K, starts, 1.0, OnDevice)[0], expected)


class TakenMeanwhile(OnDevice):
    """Another program takes what was free."""

    def values(self, *given):
        if "steps on the CPU" not in self.description:
            raise MemoryError("out of memory")
        super().values(*given)


SMALL = {
    "kernel values": partial(OnDevice, memory=1000),
    "samples": partial(OnDevice, memory=1e5, packed_bytes=1e5 - 1000),
    "taken": TakenMeanwhile,
}


@pytest.mark.parametrize("what", SMALL)
def test_where_memory_is_too_small_the_CPU_steps(what):
    K, starts = problem(sizes=(14, 9, 11))
    there, kernel = solve(K, starts, 1.0, SMALL[what])
    same(there, solve(K, starts, 1.0)[0])
    assert "the GPU's memory budget does not hold all" in kernel.description


@pytest.mark.parametrize("largest_own_set", [8, 55])
def test_rounding_of_the_kernel_is_looked_after(largest_own_set, small_sets, monkeypatch):
    monkeypatch.setattr(binary, "MAX_SINGLE_SET", largest_own_set)
    K, starts = problem(sizes=(30, 25))
    solutions, kernel = solve(K, starts, 100.0, OnDevice, rounding=1e-4)
    assert_optimal(K, starts, 100.0, solutions, 1.5e-3)
    assert kernel.wide > 0


def test_a_pair_that_rounding_keeps_from_its_end_goes_on_on_the_CPU(monkeypatch):
    """Of three pairs one is not corrected often enough; nothing is told twice."""
    K, starts = problem(sizes=(20, 15, 12))
    correct, doubted, solved = cuda_pairs.Rounds.correct, [], []

    def corrected(self, p):
        correct(self, p)
        doubted.append(p)
        if p == 1:  # again and again
            self._progress[p, _cuda_smo_kernels.SQUARES] = 1e30

    monkeypatch.setattr(cuda_pairs.Rounds, "correct", corrected)
    options = {"rounding": 1e-4, "solved": lambda p, _: solved.append(p)}
    solutions, kernel = solve(K, starts, 100.0, OnDevice, **options)
    assert_optimal(K, starts, 100.0, solutions, 1.5e-3)
    assert doubted.count(1) == binary.MAX_EVALUATIONS and sorted(solved) == [0, 1, 2]
    assert kernel.description.endswith(", 1 again on the CPU, in float64")


def test_the_best_of_a_warp_is_the_last_place_of_the_largest_key(monkeypatch):
    """Of 32 threads that meet in `largest`: keys that differ in either half, and equal ones."""
    rng, meeting, given = np.random.default_rng(0), threading.Barrier(32), []

    def largest(x):
        given.append(x)
        meeting.wait()
        found = max(given)
        if meeting.wait() == 0:
            given.clear()
        meeting.wait()
        return found

    monkeypatch.setattr(warps, "_largest", largest)
    any_keys, low = rng.integers(-(2**63), 2**63, 32), rng.integers(2**31 - 2, 2**31 + 2, 32)
    equal = rng.choice([-(2**63), 2**63 - 1, 5], 32)
    for keys in (any_keys, any_keys & 0xFFFFFFFF | -3 << 32, any_keys >> 32 << 32 | low, equal):
        lanes = (partial(warps._best_of_warp, key, np.int32(i)) for i, key in enumerate(keys))
        found = run_threads(*lanes)
        assert found == [(keys.max(), np.flatnonzero(keys == keys.max())[-1])] * 32


def test_the_check_of_a_device_finds_its_steps_right_or_names_what_is_wrong(monkeypatch):
    """`update` has work only where a pair is not its own working set."""
    there = Backend("simulated", np, "", None, free_bytes=lambda: 1e9)  # type: ignore[arg-type]
    cases = list(cuda_check.step_cases(there))
    assert [case.why for case in cases] == ["", ""] and "31, 20, 26 samples" in cases[0].data
    idle = MagicMock(__getitem__=lambda *_: lambda *_: None)
    monkeypatch.setattr(_cuda_smo_kernels, "update", idle)
    assert [bool(case.why) for case in cuda_check.step_cases(there)] == [False, True]
    monkeypatch.setattr(cuda_pairs.Rounds, "points", lambda self, ps: [np.zeros((2, 1))] * len(ps))
    for case in cuda_check.step_cases(there):
        assert case.why.startswith("select, gather, inner, update: ")


def test_steps_that_had_no_memory_are_not_found_right():
    """The CPU's were compared with themselves; a limit of whoever asks first does not count."""
    limits = []

    def free_bytes():
        limits.append(get_config()["gpu_memory"])
        return 1e3

    full = Backend("simulated", np, "", None, free_bytes=free_bytes)  # type: ignore[arg-type]
    with config_context(gpu_memory=1):
        assert "MemoryError: kernel values" in cuda_check._wrong_steps(full)
    assert limits == [None]
