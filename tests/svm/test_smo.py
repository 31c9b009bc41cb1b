"""The solver of SVC against the optimality conditions, whatever the sizes of sets and caches."""

from contextlib import nullcontext
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import reference

from gpurbf.svm import _smo_kernels, binary, pairs, row_cache
from gpurbf.svm.pairs import PairsSolver


class Matrix:
    """A kernel for the solver, evaluated by looking it up; it counts the values asked for."""

    xp, allocator = np, staticmethod(nullcontext)
    linear, rounding, blurred, on_device = False, 0.0, 0.0, False
    among, largest = None, 0  # the side of the largest part
    kept_rounding = property(lambda self: self.rounding)

    def free_bytes(self):
        return np.inf

    def __init__(self, K, ready=True, cost=100.0):
        self.K, self.matrix, self.cost = K, K if ready else None, cost
        self.dtype, self.diagonal = K.dtype, K.diagonal().astype(float)
        self.asked = self.wide = 0

    def gathered(self, samples):
        return samples

    def weighted(self, rows, samples, weights, wide=False):
        self.asked += len(rows) * len(samples)
        self.wide += wide
        return (self.K if wide else self.K + self.blurred)[np.ix_(rows, samples)] @ weights

    def between(self, samples):
        self.wide += 1
        return self.K[np.ix_(samples, samples)]

    def over(self, samples, before=None, fresh=None):
        if fresh is None:  # not the block of a working set
            self.largest = max(self.largest, len(samples))
        return samples

    def values(self, samples, columns, out, places=slice(None)):
        found = (self.K + self.blurred)[samples][:, columns]
        self.asked += found.size
        out[places] = found


def problem(seed=0, sizes=(40, 30, 25), gamma=0.3):
    """Overlapping classes: kernel matrix in float32 values, class starts."""
    rng = np.random.default_rng(seed)
    X = np.vstack([rng.normal(c, 1.0, size=(n, 3)) for c, n in enumerate(sizes)])
    K = reference.hidden(X, X, "euclidean", "gaussian", gamma)
    return K.astype(np.float32).astype(float), np.append(0, np.cumsum(sizes))


# Kernels whose values are evaluated when they are asked for; so cheap that none is kept.
Asked, Again = partial(Matrix, ready=False), partial(Matrix, ready=False, cost=0.0)


@pytest.fixture(params=[Matrix, Asked, Again])
def kind(request):
    """The kernel of the tests that hold for any; those of steps on a device are with another."""
    return request.param


def solve(K, starts, C, kind=Matrix, *, rounding=0.0, **options):
    kernel = kind(K)
    noise = rounding * np.random.default_rng(0).normal(size=K.shape)
    kernel.rounding, kernel.blurred = rounding, noise + noise.T
    bounds = np.broadcast_to(C, len(K)).astype(float)
    options = {"tol": 1e-3, "max_iter": -1, "cache_bytes": 1e9} | options
    options = dict.fromkeys(("stepped", "solved"), lambda *_: False) | options
    names = list(combinations(range(len(starts) - 1), 2))
    return PairsSolver(kernel, starts, bounds, names, **options).solve(), kernel


def parts(K, starts):
    """Of each pair its samples, their kernel, and how many are of the first class."""
    for a, b in combinations(range(len(starts) - 1), 2):
        members = np.r_[starts[a] : starts[a + 1], starts[b] : starts[b + 1]]
        yield members, K[np.ix_(members, members)], starts[a + 1] - starts[a]


def judged(K, starts, C, solutions):
    """The reference's verdict on each pair."""
    for solution, (members, own, n_a) in zip(solutions, parts(K, starts), strict=True):
        y = np.where(np.arange(len(own)) < n_a, 1.0, -1.0)
        bounds = np.broadcast_to(C, len(K))[members]
        yield solution, reference.svc_dual(own, y, bounds, solution.beta)


def assert_optimal(K, starts, C, solutions, violation):
    """Each pair says that it is done and is, by the reference, but for such a violation."""
    for solution, truth in judged(K, starts, C, solutions):
        assert solution.converged and truth["feasible"]
        assert truth["violation"] < violation


@pytest.fixture
def small_sets(monkeypatch):
    """Working sets so small that small problems need many."""
    monkeypatch.setattr(binary, "MAX_SINGLE_SET", 8)
    monkeypatch.setattr(binary, "WORKING_SET_LIMITS", (16, 16))
    monkeypatch.setattr(pairs, "MAX_MATRIX", 0)


@pytest.mark.parametrize("C", [1e-3, 0.1, 1.0, 100.0, 1e6, "of each sample"])
def test_solution_is_feasible_and_optimal(C, kind):
    K, starts = problem()
    C = np.random.default_rng(1).uniform(0.01, 5.0, len(K)) if C == "of each sample" else C
    solutions, _ = solve(K, starts, C, kind)
    assert_optimal(K, starts, C, solutions, 1e-3 + (1e-6 * C if np.isscalar(C) else 0))


def test_the_settled_are_left_out_and_looked_at_again(kind, monkeypatch):
    K, starts = problem(sizes=(60, 50))
    sizes, inner = [], binary.BinarySolver._inner

    def spy(self, rows, *options):
        sizes.append(len(rows[0]))
        return inner(self, rows, *options)

    monkeypatch.setattr(binary.BinarySolver, "_inner", spy)
    monkeypatch.setattr(_smo_kernels, "MIN_STEPS_PER_CALL", 0)
    (solution,), _ = solve(K, starts, 1e4, kind, tol=1e-6)
    assert min(sizes) < 0.6 * len(K) and sizes[-1] == len(K)
    assert_optimal(K, starts, 1e4, [solution], 2e-6)
    for most in (130, 250, solution.steps):
        (stopped,), _ = solve(K, starts, 1e4, kind, tol=1e-6, max_iter=most)
        assert stopped.steps == most


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_pair_within_a_matrix_is_solved_as_one_by_itself(dtype):
    K, starts = problem(sizes=(40, 17, 33))
    K = K.astype(dtype)
    K.flags.writeable = False
    solutions, _ = solve(K, starts, 10.0)
    for solution, (_, own, n_a) in zip(solutions, parts(K, starts), strict=True):
        (alone,), _ = solve(own, np.array([0, n_a, len(own)]), 10.0)
        np.testing.assert_array_equal(solution.beta, alone.beta)
        assert solution.steps == alone.steps > 0


@pytest.mark.parametrize("C", [0.1, 10.0, 1e3])
def test_working_sets_reach_the_same_optimum(C, kind, small_sets):
    K, starts = problem()
    solutions, _ = solve(K, starts, C, kind, tol=1e-4)
    assert_optimal(K, starts, C, solutions, 2e-4)
    for solution, truth in judged(K, starts, C, solutions):
        assert truth["gap"] < 1e-3 * abs(truth["objective"])
        for name in ("objective", "violation", "intercept", "gap"):
            assert getattr(solution, name) == pytest.approx(truth[name], abs=1e-5)


@pytest.mark.parametrize("gamma", [0.3, 30.0])
@pytest.mark.parametrize("C", [10.0, 1e3])
def test_steps_ahead_multiply_no_rounding(C, gamma, small_sets, monkeypatch):
    """A sum of changes that is rounding would look like a gain; 20,000 steps are many here."""
    monkeypatch.setattr(_smo_kernels, "CREEPING_SETS", 2)
    K, starts = problem(sizes=(90, 60), gamma=gamma)
    solutions, _ = solve(K, starts, C, Asked, tol=1e-9, max_iter=20_000)
    assert_optimal(K, starts, C, solutions, 2e-9)
    for solution in solutions:
        assert abs(solution.beta.sum()) < 1e-13 * np.abs(solution.beta).sum()


@pytest.mark.parametrize("cache_bytes", [1, 20_000, 1e9])
def test_memory_for_rows_does_not_change_the_solution(cache_bytes, small_sets, monkeypatch):
    monkeypatch.setattr(row_cache, "MIN_ROWS", 4)
    monkeypatch.setattr(pairs, "keeps_rows", lambda *_: True)
    K, starts = problem()
    # One pair at a time: pairs that share a class at the same time have rows of their own.
    monkeypatch.setattr(pairs, "_at_once", lambda *_: 1)
    expected, enough = solve(K, starts, 10.0, Asked)
    solutions, kernel = solve(K, starts, 10.0, Asked, cache_bytes=cache_bytes)
    # Pairs share the rows that there is room for.
    assert np.sign(kernel.asked - enough.asked) == (cache_bytes == 1)
    np.testing.assert_equal([found.beta for found in solutions], [one.beta for one in expected])


@pytest.mark.parametrize("kept", [True, False, "matrix"])
@pytest.mark.parametrize(("C", "rounding", "tol"), [(100.0, 1e-4, 1e-3), (1e4, 1e-2, 1e-4)])
def test_rounding_of_the_kernel_is_looked_after(kept, C, rounding, tol, small_sets, monkeypatch):
    """Where it never ends the kernel is float64: steps on another would go round in circles."""
    monkeypatch.setattr(pairs, "keeps_rows", lambda *_: bool(kept))
    if kept == "matrix":
        monkeypatch.setattr(binary, "MAX_SINGLE_SET", 80)
    K, starts = problem()
    options = {"rounding": rounding, "tol": tol, "max_iter": 200_000}
    solutions, kernel = solve(K, starts, C, Asked, **options)
    assert_optimal(K, starts, C, solutions, 1.5 * tol)
    assert kernel.wide > 0


def test_all_of_the_kernel_is_evaluated_once_where_each_pair_wants_all_of_its_own(monkeypatch):
    K, starts = problem(sizes=(40,) * 4)
    monkeypatch.setattr(pairs, "MAX_MATRIX", 0)
    solutions, once = solve(K, starts, 10.0, Asked)
    assert once.asked == K.size
    assert_optimal(K, starts, 10.0, solutions, 1e-3)
    _, without_room = solve(K, starts, 10.0, Asked, cache_bytes=K.nbytes - 1)
    assert without_room.asked != once.asked
    monkeypatch.setattr(binary, "MAX_SINGLE_SET", 79)
    _, larger = solve(K, starts, 10.0, Asked)
    assert larger.asked != once.asked


@pytest.mark.parametrize("sizes", [(40,) * 9, (12, 60, 3, 35, 50, 8, 44, 9, 30, 38)])
@pytest.mark.parametrize("side", [220, 250, 280])
def test_small_pairs_of_many_classes_share_matrices_that_memory_holds(sizes, side, monkeypatch):
    K, starts = problem(sizes=sizes)
    expected, _ = solve(K, starts, 10.0)
    monkeypatch.setattr(pairs, "MAX_MATRIX", 0)
    options = {"kind": Asked, "cache_bytes": side**2 * K.itemsize}
    solutions, kernel = solve(K, starts, 10.0, **options)
    assert side / 2 < kernel.largest <= side
    for solution, same in zip(solutions, expected):
        np.testing.assert_array_equal(solution.beta, same.beta)
        assert solution.intercept == same.intercept
    rounded, _ = solve(K, starts, 10.0, **options, rounding=1e-3)
    assert_optimal(K, starts, 10.0, rounded, 1.5e-3)
    monkeypatch.setattr(pairs, "_MAX_SMALL_PAIR", max(sizes))
    monkeypatch.setattr(Matrix, "among", "tiles")
    _, kernel = solve(K, starts, 10.0, **options)
    assert not kernel.largest  # tiles evaluate the own values of larger pairs


def test_small_pairs_are_told_and_ended_by_their_own_numbers(monkeypatch):
    monkeypatch.setattr(pairs, "MAX_MATRIX", 0)
    K, starts = problem(sizes=(40,) * 6)
    options = {"kind": Asked, "cache_bytes": 160**2 * K.itemsize}
    monkeypatch.setattr(_smo_kernels, "MIN_STEPS_PER_CALL", 1)
    told, ended = {}, 11
    hooks = {"stepped": lambda p, *_: p == ended, "solved": lambda p, at: told.update({p: at})}
    solutions, kernel = solve(K, starts, 1e6, tol=1e-8, **options, **hooks)
    assert kernel.largest == 160
    assert [p for p, found in enumerate(solutions) if not found.converged] == [ended]
    assert [told[p] for p in range(15)] == solutions
    left, few = solve(K, starts, 10.0, **options, solved=lambda p, _: p == 0)
    assert left[0].converged and not any(found.steps for found in left[-3:])
    assert 0 < few.asked < kernel.asked
    with pytest.raises(KeyError):
        solve(K, starts, 10.0, **options, solved=lambda p, _: {}[p])


def test_two_classes_keep_rows_from_the_set_on_that_would_have_found_enough(
    small_sets, monkeypatch
):
    (K, starts), cheap, asked = problem(sizes=(60, 50)), partial(Asked, cost=1.3), {}
    for capacity in (None, len(K), 0):
        monkeypatch.setattr(pairs, "rows_in_doubt", lambda *_, found=capacity: found)
        (solution,), kernel = solve(K, starts, 10.0, cheap, tol=1e-5)
        assert_optimal(K, starts, 10.0, [solution], 2e-5)
        asked[capacity] = kernel.asked
    assert asked[None] < asked[len(K)] < asked[0]
    monkeypatch.setattr(pairs, "keeps_rows", lambda *_: False)
    assert asked[0] == solve(K, starts, 10.0, cheap, tol=1e-5)[1].asked


@pytest.mark.parametrize(
    ("rule", "cost", "sizes", "megabytes", "expected"),
    [
        (pairs.keeps_rows, 1.3, 40_000, 200, False),
        (pairs.keeps_rows, 1.3, 40_000, 40_000, True),
        (pairs.keeps_rows, 13.0, 12_000, 200, True),
        (pairs.keeps_rows, 13.0, 12_000, 0, False),
        (pairs.rows_in_doubt, 1.3, (9_000, 11_000), 200, 2_621),
        (pairs.rows_in_doubt, 1.3, (9_000, 11_000), 0, 0),
        (pairs.rows_in_doubt, 1.3, (9_000, 11_000), 2_000, None),
        (pairs.rows_in_doubt, 1.3, (9_000, 11_000, 1), 200, None),
        (pairs.rows_in_doubt, 1.6, (9_000, 11_000), 200, None),
    ],
)
def test_rows_are_kept_where_they_are_dear_or_fit_and_in_doubt_where_cheap_and_few_fit(
    rule, cost, sizes, megabytes, expected
):
    kernel = Asked(np.eye(2), cost=cost)
    assert rule(kernel, np.array(sizes), megabytes * 2**20) == expected


RNG = np.random.default_rng(0)
INDEFINITE = RNG.normal(size=(40, 40)).astype(np.float32).astype(float)
FAR_APART = RNG.normal(size=(40, 2)) + np.repeat([[-4], [4]], 20, axis=0)


@pytest.mark.parametrize(
    ("K", "C"),
    [
        (INDEFINITE + INDEFINITE.T, 10.0),
        (np.ones((40, 40)), 3.0),
        (FAR_APART @ FAR_APART.T, np.inf),
    ],
    ids=["indefinite", "equal samples of both classes", "no bounds"],
)
def test_what_has_no_single_optimum_or_no_bounds_comes_to_an_end(K, C, kind, small_sets):
    (solution,), _ = solve(K, np.array([0, 20, 40]), C, kind, max_iter=100_000)
    assert solution.converged and np.isfinite(solution.beta).all()
    assert np.abs(solution.beta).max() <= C
    assert abs(solution.beta.sum()) < 1e-9


@pytest.mark.parametrize("limit", [0, 1, 7, 9])
def test_limit_of_steps_is_kept_exactly(limit, kind, small_sets):
    K, starts = problem()
    solutions, _ = solve(K, starts, 100.0, kind, max_iter=limit)
    assert [solution.steps for solution in solutions] == [limit] * 3
    assert not any(solution.converged for solution in solutions)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("where", [np.s_[:, :], np.s_[5, 70], np.s_[5, 5]])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_an_error(where, value, kind, small_sets):
    """Be it everywhere, outside the first set, or of a sample and itself."""
    K, starts = problem()
    K[where] = K.T[where] = value
    with pytest.raises(FloatingPointError):
        solve(K, starts, 1.0, kind)


LINEAR = np.random.default_rng(0).normal(size=(120, 4))


@pytest.mark.parametrize(
    ("K", "C", "name", "without"),
    [
        (problem(sizes=(60, 60))[0], 1e3, "TwoStep.ahead", lambda *_: None),
        ((LINEAR @ LINEAR.T).astype(np.float32), 100.0, "_FREE_VALUES_PER_STEP_VALUE", 0),
    ],
    ids=["where C is large", "where single samples creep"],
)
def test_steps_ahead_and_of_all_free_samples_save_steps(
    K, C, name, without, kind, small_sets, monkeypatch
):
    K, starts = K.astype(float), np.array([0, 60, 120])
    fast, _ = solve(K, starts, C, kind, tol=1e-6)
    assert_optimal(K, starts, C, fast, 2e-6)
    monkeypatch.setattr(f"gpurbf.svm.binary.{name}", without)
    slow, _ = solve(K, starts, C, kind, tol=1e-6)
    assert fast[0].objective == pytest.approx(slow[0].objective, rel=1e-6)
    assert fast[0].steps < slow[0].steps / 2


def test_a_pair_can_be_ended_from_outside(kind, small_sets):
    K, starts = problem(sizes=(20, 16, 12))
    done, hooks = [], {"stepped": lambda p, *_: p == 1, "solved": lambda p, _: done.append(p)}
    solutions, kernel = solve(K, starts, 10.0, kind, **hooks)
    assert [solution.converged for solution in solutions] == [True, False, True]
    assert sorted(done) == [0, 1, 2]
    assert done[0] == 1 or not kernel.on_device  # where all pairs step side by side
    assert all(truth["feasible"] for _, truth in judged(K, starts, 10.0, solutions))


@pytest.mark.parametrize(
    ("C", "tol", "rounding"), [(1.0, 1e-3, 0.0), (10.0, 1e-3, 1e-3), (1e6, 1e-8, 0.0)]
)
def test_pairs_that_have_not_begun_can_be_left_out(C, tol, rounding, monkeypatch):
    """Of those that begin in one call, too: ended, not ended, or of rounding to be looked after."""
    if C > 1:
        monkeypatch.setattr(_smo_kernels, "MIN_STEPS_PER_CALL", 1)
    K, starts = problem(sizes=(40,) * 4)
    options = {"rounding": rounding, "tol": tol, "solved": lambda p, _: p == 1}
    solutions, _ = solve(K, starts, C, **options)
    assert [found.steps > 0 for found in solutions] == [True, True, False, False, False, False]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_in_one_pair_is_raised_and_ends_all(error, kind, small_sets, monkeypatch):
    monkeypatch.setattr(pairs, "_MIN_THREADED", 0)
    K, starts = problem(sizes=(30,) * 6)

    def stepped(p, steps, violation):
        if p == 4:
            raise error
        return False

    with pytest.raises(error):
        solve(K, starts, 1.0, kind, stepped=stepped)
