"""SVC's steps in Numba's simulator: the CPU's path to the bit, and solutions as good."""

import threading
from itertools import combinations

import numpy as np
import pytest

from gpurbf.layer.backends import Backend
from gpurbf.layer.backends.cuda.kernels import warps
from gpurbf.svm import _cuda_smo_kernels, binary, cuda_pairs, pairs
from gpurbf.svm._smo_kernels import kkt_violation, solve_block
from gpurbf.svm._working_set_kernels import next_set
from gpurbf.svm.pair_kernel import all_rows
from gpurbf.svm.pairs import solve_pairs
from tests.svm.test_smo import Matrix, judged, problem


class OnDevice(Matrix):
    """A kernel whose values and steps are on a device, which is NumPy's memory here."""

    on_device = True

    def __init__(self, K, dtype=np.float64, memory=1e9):
        super().__init__(K, ready=False)
        self.dtype, self.memory, self.description = np.dtype(dtype), memory, "simulated"

    def free_bytes(self):
        return self.memory


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    """Numbers of threads that no number of samples here is a multiple of."""
    counts = {"_STEP_THREADS": 3, "_UPDATE_THREADS": 4, "_MAX_BLOCKS_PER_PAIR": 2}
    for name, count in counts.items():
        monkeypatch.setattr(cuda_pairs, name, count)


@pytest.fixture
def small_sets(monkeypatch):
    monkeypatch.setattr(binary, "MAX_SINGLE_SET", 8)
    monkeypatch.setattr(cuda_pairs, "working_set_size", lambda n: 15)
    monkeypatch.setattr(pairs, "MAX_MATRIX", 0)


def solve(kernel, starts, C, tol=1e-3, max_iter=-1, **hooks):
    bounds = np.broadcast_to(C, len(kernel.K)).astype(float)
    hooks = {"stepped": lambda *_: False, "solved": lambda *_: False} | hooks
    options = {"tol": tol, "max_iter": max_iter, "cache_bytes": 1e9}
    names = list(combinations(range(len(starts) - 1), 2))
    return solve_pairs(kernel, starts, bounds, names, **options, **hooks)


def same(solutions, expected):
    for a, b in zip(solutions, expected, strict=True):
        assert (a.steps, a.violation, a.converged) == (b.steps, b.violation, b.converged)
        assert (a.intercept, a.objective, a.gap) == (b.intercept, b.objective, b.gap)
        np.testing.assert_array_equal(a.beta, b.beta)


@pytest.mark.parametrize("case", ["float32", "twins", "bounds", "indefinite", "limit"])
def test_a_pair_that_is_its_own_set_takes_the_path_of_the_CPU(case, monkeypatch):
    """Also where its steps are several launches."""
    if case in ("twins", "limit"):
        monkeypatch.setattr(cuda_pairs, "_STEPS_PER_LOOK", 20)
        monkeypatch.setattr(cuda_pairs, "_MIN_STEPS_PER_LAUNCH", 4)
    K, starts = problem(sizes=(8, 6, 7))
    C, limit, dtype = 10.0, -1, np.float64
    if case == "float32":
        dtype, K = np.float32, K.astype(np.float32)
    elif (
        case == "twins"
    ):  # equal samples, of one class and of two: gains and f are equal to the bit
        copied = np.arange(len(K)) // 3 * 3
        K = K[np.ix_(copied, copied)]
    elif case == "bounds":
        C = np.random.default_rng(1).uniform(0.01, 5.0, len(K))
    elif case == "indefinite":
        K, limit = np.round(K @ K - 2 * K.T[::-1, ::-1], 3), 40
        K = (K + K.T) / 2
    else:
        limit = 7
    there = solve(OnDevice(K, dtype), starts, C, max_iter=limit)
    same(there, solve(Matrix(K, ready=True), starts, C, max_iter=limit))
    assert sum(solution.steps for solution in there) > 10


def block(seed, n, ties):
    """A state amid a problem: K, bounds, beta, f; few different numbers if there are to be ties."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2, (n, 3)) if ties else rng.normal(size=(n, 3))
    K = np.exp(-((X[:, None] - X) ** 2).sum(axis=2) / 3).astype(np.float32)
    y, C = np.sign(rng.normal(size=n)), rng.choice([0.5, 1.0, 2.0], n)
    beta = y * C * rng.choice([0.0, 0.0, 0.5, 1.0], n)
    return K, y * C, beta, np.round(y - K @ beta, 1 if ties else 9)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("n, most", [(1, 5), (13, 1), (37, 9), (37, 500)])
def test_inner_steps_are_those_of_the_CPU_on_any_block(n, most, ties):
    """Two blocks of two pairs of three, members in any order among more samples."""
    rng = np.random.default_rng(n)
    blocks = [block(seed, n, ties) for seed in (0, 1)]
    lengths = 50, n + 9, 3
    starts = np.cumsum([0, *lengths])
    bounds, beta, f = (np.zeros(starts[-1]) for _ in range(3))
    members, wave = np.zeros((3, 40), np.int32), np.array([1, 0], np.int32)
    K = np.zeros((2, 40, 40), np.float32)
    for slot, p in enumerate(wave):
        members[p, :n] = rng.permutation(lengths[p])[:n]
        at = starts[p] + members[p, :n]
        K[slot, :n, :n], bounds[at], beta[at], f[at] = blocks[slot]
    nothing = np.zeros(0, np.int64)
    sizes = np.full(3, n)
    state = _cuda_smo_kernels.Pairs(starts, nothing, bounds, beta, f, nothing, sizes)
    progress = np.zeros((3, 6))
    progress[:, _cuda_smo_kernels.VIOLATION], before = 1.0, f.copy()
    given = _cuda_smo_kernels.Blocks(K, np.ones((2, 40)), np.full((2, 40), np.nan))
    rules = _cuda_smo_kernels.Rules(1e-3, -1, most, 0.05, 0.2, 32, 0.0)
    sets = _cuda_smo_kernels.Sets(members, np.full(3, n, np.int32))
    _cuda_smo_kernels.inner[2, 3](wave, state, sets, given, progress, rules)
    for slot, p in enumerate(wave):
        values, bound, inside, f_inside = blocks[slot]
        old, ends = inside.copy(), (np.minimum(bound, 0), np.maximum(bound, 0))
        rows = tuple(all_rows(values))
        steps, _, _ = solve_block(rows, np.ones(n), *ends, inside, f_inside, 0.05, most)
        at = starts[p] + members[p, :n]
        assert progress[p, _cuda_smo_kernels.STEPS] == steps and progress[
            p, _cuda_smo_kernels.STUCK
        ] == (steps == 0)
        assert progress[p, _cuda_smo_kernels.SQUARES] == pytest.approx(((inside - old) ** 2).sum())
        np.testing.assert_array_equal(beta[at], inside)
        np.testing.assert_array_equal(given.change[slot, :n], inside - old)
    np.testing.assert_array_equal(f, before)
    assert progress[2].tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("ties", [True, False])
def test_working_sets_are_chosen_by_the_rule_of_the_CPU(ties):
    """Of equals the first; the newer half of the last set stays where it is old and odd."""
    n, size = 61, 16
    _, bounds, beta, f = block(3, n, ties)
    f -= 0.0 if ties else 5.0  # of both signs, and of one
    samples = np.arange(n)
    state = _cuda_smo_kernels.Pairs(
        np.array([0, n]), samples, bounds, beta, f, np.zeros(n, np.int64), np.array([size])
    )
    progress, wave = np.zeros((1, 6)), np.zeros(1, np.int32)
    sets = _cuda_smo_kernels.Sets(np.zeros((1, size), np.int32), np.zeros(1, np.int32))
    rules = _cuda_smo_kernels.Rules(1e-3, -1, 1, 0.05, 0.2, 32, 0.0)
    low, high = np.minimum(bounds, 0), np.maximum(bounds, 0)
    previous = np.zeros(0, int)
    for count in (0, 16, 7):
        previous = previous[:count]
        sets.counts[0] = len(previous)
        progress[0, _cuda_smo_kernels.STATE] = _cuda_smo_kernels.RUNNING
        _cuda_smo_kernels.select[1, 3](wave, state, sets, progress, rules)
        up, down = np.empty(n), np.empty(n)
        assert progress[0, _cuda_smo_kernels.VIOLATION] == kkt_violation(
            beta, low, high, f, up, down
        )
        chosen = sets.members[0, : sets.counts[0]].copy()
        kept = previous[len(previous) // 2 :]
        up[kept], down[kept] = -np.inf, np.inf
        half = (size - len(kept)) // 2
        rising = [k for k in np.argsort(-up, kind="stable")[:half] if up[k] > -np.inf]
        down[rising] = np.inf
        falling = [k for k in np.argsort(down, kind="stable")[:half] if down[k] < np.inf]
        np.testing.assert_array_equal(chosen[: len(kept)], kept)
        assert set(chosen[len(kept) :]) == {*rising, *falling}
        assert len(chosen) == len(kept) + len(rising) + len(falling) == len(set(chosen))
        given = beta, f, low, high, np.ones(n), np.empty((2, n))
        assert set(chosen) == set(next_set(*given, previous, True, size, -np.inf)[1])
        previous = chosen


@pytest.mark.parametrize("C", [0.1, 10.0])
def test_working_sets_reach_the_optimum(C, small_sets):
    K, starts = problem(sizes=(20, 16, 24))
    kernel = OnDevice(K)
    solutions = solve(kernel, starts, C, tol=1e-4)
    for solution, truth in judged(K, starts, C, solutions):
        assert solution.converged and truth["feasible"]
        assert truth["violation"] < 1.5e-4
        for name in ("objective", "violation", "intercept", "gap"):
            assert getattr(solution, name) == pytest.approx(truth[name], abs=1e-5)
    assert kernel.description.endswith("steps on the GPU, all pairs of classes side by side")


@pytest.mark.parametrize("rows, width", [(30, 2), (15, 1)])
def test_memory_does_not_change_the_solution(rows, width, small_sets, monkeypatch):
    """Rows of some members at a time, or of all; all pairs side by side or one after the other."""
    K, starts = problem(sizes=(14, 12, 10))
    monkeypatch.setattr(cuda_pairs, "_STEPS_PER_LOOK", 10**9)
    expected = solve(OnDevice(K), starts, 1.0)
    planned = cuda_pairs.Plan(rows, width)
    monkeypatch.setattr(cuda_pairs, "plan", lambda *_: planned)
    kernel = OnDevice(K)
    same(solve(kernel, starts, 1.0), expected)
    # The rounds after the last steps and before the host's look evaluate nothing.
    asked, looks = kernel.asked, []
    kernel.asked = 0
    monkeypatch.setattr(cuda_pairs, "_ROUNDS_PER_LOOK", 40)
    same(solve(kernel, starts, 1.0, stepped=lambda *_: looks.append(1)), expected)
    assert kernel.asked == asked and not looks


def test_where_memory_is_too_small_the_CPU_steps():
    K, starts = problem(sizes=(14, 9, 11))
    kernel = OnDevice(K, memory=1000)
    same(solve(kernel, starts, 1.0), solve(Matrix(K, ready=True), starts, 1.0))
    assert "steps on the CPU: the GPU's memory" in kernel.description


def test_rounding_of_the_kernel_is_looked_after(small_sets, monkeypatch):
    K, starts = problem(sizes=(30, 25))
    noise = 1e-4 * np.random.default_rng(0).normal(size=K.shape)
    kernel = OnDevice(K)
    kernel.rounding, kernel.blurred = 1e-4, noise + noise.T
    solutions = solve(kernel, starts, 100.0)
    for solution, truth in judged(K, starts, 100.0, solutions):
        assert solution.converged
        assert truth["violation"] < 1.5e-3
    assert kernel.wide > 0


@pytest.mark.parametrize("limit", [0, 1, 9])
def test_limit_of_steps_is_kept_exactly(limit, small_sets):
    K, starts = problem(sizes=(20, 15, 12))
    solutions = solve(OnDevice(K), starts, 100.0, max_iter=limit)
    assert [solution.steps for solution in solutions] == [limit] * 3
    assert not any(solution.converged for solution in solutions)


def test_pairs_can_be_ended_from_outside_and_an_error_ends_all(small_sets):
    K, starts = problem(sizes=(20, 16, 12))
    done = []
    solutions = solve(
        OnDevice(K), starts, 10.0,
        stepped=lambda p, steps, violation: p == 1,
        solved=lambda p, solution: done.append(p),
    )  # fmt: skip
    assert [solution.converged for solution in solutions] == [True, False, True]
    assert done[0] == 1 and sorted(done) == [0, 1, 2]
    for _, truth in judged(K, starts, 10.0, solutions):
        assert truth["feasible"]

    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(OnDevice(K), starts, 1e3, stepped=interrupted)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("where", [(5, 30), (slice(None), slice(None))])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_an_error(where, value, small_sets, monkeypatch):
    monkeypatch.setattr(cuda_pairs, "_STEPS_PER_LOOK", 400)
    monkeypatch.setattr(cuda_pairs, "_MIN_STEPS_PER_LAUNCH", 20)
    K, starts = problem(sizes=(25, 20))
    K[where] = K.T[where] = value
    with pytest.raises(FloatingPointError):
        solve(OnDevice(K), starts, 1.0)


def test_the_best_of_a_warp_is_the_last_place_of_the_largest_key(monkeypatch):
    """Of 32 threads that meet in `largest`: keys that differ in either half, and equal ones."""
    rng, meeting = np.random.default_rng(0), threading.Barrier(32)
    given = np.zeros(32, np.int32)

    def largest(x):
        lane = int(threading.current_thread().name)
        given[lane] = x
        meeting.wait()
        found = given.max()
        meeting.wait()
        return found

    monkeypatch.setattr(warps, "_largest", largest)
    for kind in range(4):
        keys = rng.integers(-(2**63), 2**63, 32)
        if kind == 1:
            keys = keys & 0xFFFFFFFF | (np.int64(rng.integers(-4, 4)) << 32)
        elif kind == 2:
            keys = (keys >> 32 << 32) | rng.integers(2**31 - 2, 2**31 + 2, 32)
        elif kind == 3:
            keys = rng.choice([-(2**63), 2**63 - 1, 5], 32)
        results = [None] * 32

        def run(lane, keys=keys, results=results):
            results[lane] = warps._best_of_warp(keys[lane], np.int32(lane))

        threads = [threading.Thread(target=run, args=(i,), name=str(i)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = keys.max(), np.flatnonzero(keys == keys.max())[-1]
        assert results == [expected] * 32


def test_the_check_of_a_device_finds_its_steps_right_or_names_what_is_wrong(monkeypatch):
    there = Backend("simulated", np, "", None, free_bytes=lambda: 1e9)  # type: ignore[arg-type]
    (case,) = cuda_pairs.step_cases(there)
    assert case.why == "" and "31, 20, 26 samples" in case.data
    monkeypatch.setattr(cuda_pairs.Rounds, "states", lambda self, ps: [(None, None) for _ in ps])
    (case,) = cuda_pairs.step_cases(there)
    assert case.why.startswith("select, gather, inner, update: ")
