"""Rows are copied and hashed alike in one piece, row by row, and by any number of threads."""

import numpy as np
import pytest
import scipy.sparse as sp

from gpurbf.data.hashes import row_hashes
from gpurbf.data.samples import rows_of
from gpurbf.runtime.threads import limited

# More than two tasks of bytes.
PIXELS = np.random.default_rng(0).integers(0, 256, (5000, 300), np.uint8)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_rows_are_those_of_an_index(n_jobs):
    order = np.random.default_rng(1).integers(0, len(PIXELS), 2 * len(PIXELS))
    unaligned = np.frombuffer(b"." + PIXELS.tobytes(), np.float64, PIXELS.size // 8, 1)
    for X in (PIXELS, PIXELS.T.copy().T, PIXELS[:, ::2], unaligned.reshape(-1, 300)):
        for rows in (order % len(X), np.flatnonzero(order < 0), slice(3, 9), order[: len(X)] > 99):
            with limited(n_jobs):
                copy = rows_of(X, rows)
                wide = rows_of(X, rows, np.float64)
            assert copy.dtype == X.dtype and wide.dtype == np.float64
            np.testing.assert_array_equal(copy, X[rows])
            np.testing.assert_array_equal(wide, X[rows])
    sparse = sp.csr_array(PIXELS[:50])
    assert (rows_of(sparse, order % 50) != sparse[order % 50]).nnz == 0


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_hash_is_that_of_the_row_alone(n_jobs):
    alone = np.concatenate([row_hashes(row[None], 0) for row in PIXELS[::50]])
    for X in (PIXELS, np.asfortranarray(PIXELS), PIXELS.astype(float), sp.csr_array(PIXELS)):
        with limited(n_jobs):
            np.testing.assert_array_equal(row_hashes(X, 0)[::50], alone)
