"""Where the rows of SVC's solver are: nobody writes into another's, and memory is used again."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpurbf.svm import row_cache


@pytest.mark.parametrize("sizes", [[6000] * 10, [5000, 7, 300, 1], [40] * 300, [3, 2]])
@pytest.mark.parametrize("n_bytes", [1, 1e6, 2e8])
def test_no_two_caches_share_a_number_and_those_in_use_have_their_least(sizes, n_bytes):
    rng, in_use = np.random.default_rng(0), 4
    budget = row_cache.Budget(sizes, n_bytes, in_use)
    least = 4 * in_use * row_cache.MIN_ROWS * max(sizes)
    assert budget.size * 4 <= n_bytes + 2 * least
    for _ in range(200):
        using = []
        for c in rng.integers(0, len(sizes), in_use).tolist():  # a class may be in use twice
            cache = budget.fetch(c)
            assert cache is None or cache.c == c
            using.append(cache or SimpleNamespace(c=c, pieces=[], rows=np.empty(0, int)))
        for cache in using:
            n = sizes[cache.c]
            # No class has more rows than samples of its own and of another.
            wanted = min(int(rng.integers(1, 500)), 2 * max(sizes)) - len(cache.rows)
            pieces, own = budget.take(wanted, n, row_cache.MIN_ROWS - len(cache.rows))
            cache.pieces += pieces
            cache.rows = np.append(cache.rows, own)
            assert len(cache.rows) >= min(row_cache.MIN_ROWS, wanted)
            first, last = own * n, (own + 1) * n - 1
            assert np.isin(first // budget.piece, pieces).all()
            assert np.array_equal(first // budget.piece, last // budget.piece)
        taken = [i for cache in using for i in cache.pieces]
        assert len(set(taken)) == len(taken) and max(taken) < budget.size // budget.piece
        for cache in using:
            budget.park(cache.c, cache)


def test_caches_that_nobody_uses_give_way_the_longest_unused_first():
    budget = row_cache.Budget([100] * 3, 4 * 100 * 240, 1)
    caches = [SimpleNamespace(pieces=budget.take(80, 100, 0)[0]) for _ in range(3)]
    for c, cache in enumerate(caches):
        budget.park(c, cache)
    budget.park(0, budget.fetch(0))
    pieces, _ = budget.take(50, 100, 0)
    assert budget.fetch(1) is None and set(pieces) <= set(caches[1].pieces)
    assert budget.fetch(2) is caches[2] and budget.fetch(0) is caches[0]


def test_a_first_growth_takes_what_it_needs_and_a_later_one_a_share_of_what_is_free():
    """Each growth ends a compiled call; caches far apart share no huge page of memory."""
    budget = row_cache.Budget([1000] * 4, 4 * 1000 * 4000, 4)
    first, _ = budget.take(1, 1000, row_cache.MIN_ROWS)
    assert len(first) == 1
    free = budget.size // budget.piece - 1
    later, rows = budget.take(1, 1000, 0)
    assert free / 8 < len(later) <= free / 4 and len(rows) > 100
