"""Products with H that is kept are those of float64: every CPU kernel, shapes that fit no tile."""

import numpy as np
import pytest

from gpurbf.solvers.cg.stored_h import StoredH

STEP = 1 / 65534
SHAPES = [(0, 40), (1, 1), (3, 15), (64, 16), (65, 257), (130, 300), (517, 1025)]


def kept(H, step, *, triangle=False, rows=100):
    """H less a half, in blocks of rows, and what is kept of it as one float64 matrix."""
    found = StoredH(len(H), np.full(H.shape[1], 0.5), step, triangle)
    assert all(found.add(H[start : start + rows], start) for start in range(0, len(H), rows))
    whole = np.zeros(H.shape)
    for top, block in found.blocks:  # padded with zeros
        whole[top : top + len(block), : block.shape[1]] = block[:, : H.shape[1]]
    whole *= step or 1
    if triangle:
        whole = np.tril(whole) + np.tril(whole, -1).T
    np.testing.assert_allclose(whole, H - 0.5, rtol=0, atol=1e-5)
    return found, whole


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).random(shape)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 11, 12, 17, 33])
@pytest.mark.parametrize("N, m", SHAPES)
def test_both_products_are_those_of_float64_and_operands_stay(kernel, N, m, k):
    for step, dtype in ((STEP, np.float32), (None, np.float32), (None, np.float64)):
        rows, exact = kept(numbers(N, m).astype(dtype), step)
        V, U = numbers(m, k, seed=1) - 0.5, numbers(N, k, seed=2) - 0.5
        before = V.copy(), U.copy()
        np.testing.assert_allclose(rows.matvec(V), exact @ V, rtol=0, atol=1e-12)
        np.testing.assert_allclose(rows.rmatvec(U), exact.T @ U, rtol=0, atol=1e-12)
        np.testing.assert_equal((V, U), before)


@pytest.mark.parametrize("k", [2, 11])
@pytest.mark.parametrize("m", [1, 99, 101, 300, 1100])
def test_a_triangle_is_the_whole_matrix(kernel, m, k):
    K = numbers(m, m).astype(np.float32)
    K = np.tril(K) + np.tril(K, -1).T
    rows, exact = kept(K, STEP, triangle=True)
    assert sum(block.nbytes for _, block in rows.blocks) < 2 * m * (m / 2 + 100)
    V = numbers(m, k, seed=1) - 0.5
    np.testing.assert_allclose(rows.matvec(V), exact @ V, rtol=0, atol=1e-11)
