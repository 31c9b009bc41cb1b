"""T and the reflectors of our kernel are the matrix: every CPU kernel, shapes, magnitudes."""

import numpy as np
import pytest

from gpurbf.layer.backends.numba import microkernel_table
from gpurbf.runtime.threads import limited
from gpurbf.solvers.ridge import _householder_kernels
from gpurbf.solvers.ridge.tridiagonal import tridiagonal

SIZES = [2, 3, 4, 5, 8, 9, 15, 16, 17, 18, 24, 31, 32, 33, 63, 64, 65, 100, 129, 257, 500]


def symmetric(m, seed=0):
    A = np.random.default_rng(seed).normal(size=(m, m))
    return A + A.T


def assert_is_its_form(form, A):
    """A = Q T Qᵀ with orthogonal Q."""
    m, largest = len(A), np.abs(A).max(initial=1e-300)
    T = np.diag(form.diagonal) + np.diag(form.beside, 1) + np.diag(form.beside, -1)
    Q = form.turn(np.eye(m))
    np.testing.assert_allclose(Q @ Q.T, np.eye(m), rtol=0, atol=1e-13 * m)
    np.testing.assert_allclose(Q @ (T / largest) @ Q.T, A / largest, rtol=0, atol=1e-14 * m)
    np.testing.assert_allclose(form.back(Q), np.eye(m), rtol=0, atol=1e-13 * m)


@pytest.mark.parametrize("m", SIZES)
def test_it_is_the_matrix_turned(kernel, m):
    A = symmetric(m)
    lower = A.copy()
    lower[np.triu_indices(m, 1)] = np.nan  # what is above the diagonal is not read
    assert_is_its_form(tridiagonal(np, lower), A)


@pytest.mark.parametrize("factor", [1e-300, 1e-150, 1.0, 1e150, 1e300])
def test_any_magnitude(kernel, factor):
    A = factor * symmetric(70)
    assert_is_its_form(tridiagonal(np, A.copy()), A)


def test_nothing_to_reflect(kernel):
    """Columns that are what they shall be, from the first on, in the middle, and all of them."""
    block = np.zeros((50, 50))
    block[:20, :20], block[30:, 30:] = symmetric(20), symmetric(20, seed=1)
    tiny = symmetric(40)
    tiny[0, 2:] = tiny[2:, 0] = 0
    rank = np.outer(np.arange(33.0), np.arange(33.0))
    for A in (np.zeros((20, 20)), np.eye(37), np.diag(np.arange(21.0)), block, tiny, rank):
        assert_is_its_form(tridiagonal(np, A.copy()), A)


def test_the_helper_changes_no_bits():
    A, V = symmetric(613), np.eye(613)[::7]
    found = []
    for n_threads in (1, 2, 2, 2):
        with limited(n_threads):
            form = tridiagonal(np, A.copy())
            found.append((form.diagonal, form.beside, form.turn(V)))
    for other in found[1:]:
        for one, two in zip(found[0], other):
            np.testing.assert_array_equal(one, two)


def test_a_helper_without_a_leader_goes():
    """An interrupt may come before the leader has begun."""
    nothing, state = np.zeros((1, 1, 1)), np.zeros(_householder_kernels.STATE, np.int64)
    kernel = microkernel_table.kernel("gram64_generic")
    room = nothing[0], 1, kernel, state, nothing, nothing, nothing[0, 0], nothing[0]
    _householder_kernels.help_out(_householder_kernels.Shared(*room))
    assert not state.any()
