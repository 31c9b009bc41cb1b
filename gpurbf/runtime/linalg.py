"""Factorizations of symmetric matrices on the CPU or a GPU.

On the CPU, a Cholesky factor is computed in panels: groups of columns, from the diagonal down. Our
own threads do this, and each calls BLAS and LAPACK with a single BLAS thread. BLAS's own threads
spin while they wait for each other, and wait long if other work uses the cores
(docs/notes/threads.md).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from gpurbf.runtime.arrays import library
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.threads import map_single_threaded_blas, parallel_rows, single_threaded_blas

extending = lazy_module("numba.extending")

# Rows of a block that is mirrored or multiplied.
_BLOCK = 256
# What a thread takes at a time: rows of a panel to factorize, right-hand sides to solve for. If
# there are few of these: numbers of a panel for L⁻¹ B, columns of it for L⁻ᵀ B.
_ROWS, _COLUMNS, _NUMBERS_SOLVED, _COLUMNS_SOLVED = 512, 256, 512 * 768, 96


def cholesky(A: Any) -> Any:
    """The lower L with L Lᵀ = A, for a float64 A (m, m) of NumPy, C-contiguous, or CuPy.

    It may overwrite A, but if it raises LinAlgError, A is unchanged except for its diagonal.
    """
    if (xp := library(A)) is not np:
        from cupyx import errstate

        # By default, CuPy returns garbage instead of raising an error.
        with errstate(linalg="raise"):
            return xp.linalg.cholesky(A)
    try:
        factorize(_panels(A.T))
    except np.linalg.LinAlgError:
        mirror(A)  # A's lower triangle is unchanged
        raise
    return A.T


def eigh(A: Any) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors of a symmetric float64 A of NumPy or CuPy; may overwrite A."""
    if (xp := library(A)) is not np:
        return xp.linalg.eigh(A)
    return scipy.linalg.eigh(A.T, overwrite_a=True, check_finite=False)


def solve_triangular(L: Any, B: Any, trans: int = 0) -> Any:
    """L⁻¹ B for a lower L, or L⁻ᵀ B with trans=1, for float64 arrays of NumPy or CuPy."""
    if library(L) is not np:
        from cupyx.scipy.linalg import solve_triangular as on_device

        return on_device(L, B, trans, lower=True)
    X = np.array(B, np.float64, order="F")
    solve_panels(_panels(np.asfortranarray(L)), X, transposed=bool(trans))
    return X


def product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """A B, with the same bits for every number of threads."""
    parts = [A[i : i + _BLOCK] for i in range(0, len(A), _BLOCK)]
    return np.concatenate(map_single_threaded_blas([partial(np.matmul, part, B) for part in parts]))


def add_gram(A: np.ndarray, G: np.ndarray) -> None:
    """Add A Aᵀ to the lower triangle of G, with the same bits for every number of threads."""

    def add(top: int) -> None:
        end = min(top + _BLOCK, len(A))
        G[top:end, :end] += A[top:end] @ A[:end].T

    map_single_threaded_blas([partial(add, top) for top in reversed(range(0, len(A), _BLOCK))])


def dot(a: np.ndarray, V: np.ndarray) -> Any:
    """a V for a (m,), whose bits would depend on the threads of BLAS if m is large."""
    with single_threaded_blas():
        return a @ V


def _panels(L: np.ndarray) -> list[np.ndarray]:
    """The lower triangle of L (m, m), in Fortran's order, as panels."""
    w = panel_width(len(L))
    return [L[top:, top : top + w] for top in range(0, len(L), w)]


def panel_width(m: int) -> int:
    """Columns of a panel of a matrix (m, m): wide panels are fast, many keep threads busy."""
    return 256 if 512 < m <= 4096 else 768


def factorize(panels: Sequence[np.ndarray]) -> None:
    """Replace the panels of a symmetric matrix (m, m) by those of its Cholesky factor.

    The factor is bit for bit the same for every number of threads.

    Parameters
    ----------
    panels : sequence of ndarray of shape (m - top, w)
        Each has w columns of the matrix, the first of which is number ``top``, from row ``top`` on;
        float32 or float64, in Fortran's order. Only the lower triangle of its top square is read
        and written.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.
    """

    def finish_diagonal(j: int) -> None:
        P, info = panels[j], np.zeros(1, np.intc)
        blas("potrf", b"L", P.shape[1], P, _apart(P), info)
        if info[0]:
            raise np.linalg.LinAlgError("not positive definite")

    def finish_rows(j: int, i: int) -> None:
        """Solve for rows i … of panel j, whose diagonal is finished."""
        P, n = panels[j], min(_ROWS, len(panels[j]) - i)
        blas("trsm", b"R", b"L", b"T", b"N", n, P.shape[1], 1.0, P, _apart(P), P[i:], _apart(P))

    def subtract(j: int, later: int, i: int) -> None:
        """Subtract from rows i … of a later panel the products of panel j, which is finished."""
        P = panels[later]
        Q, w = panels[j][-len(P) :], P.shape[1]
        n, k = min(_ROWS, len(P) - i), panels[j].shape[1]
        if i:
            factors = Q[i:], _apart(Q), Q, _apart(Q)
            blas("gemm", b"N", b"T", n, w, k, -1.0, *factors, 1.0, P[i:], _apart(P))
        else:
            blas("syrk", b"L", b"N", w, k, -1.0, Q, _apart(Q), 1.0, P, _apart(P))
        if not i and later == j + 1:
            finish_diagonal(later)

    def rows(j: int) -> range:
        """The first of each group of rows below the diagonal of a panel."""
        return range(panels[j].shape[1], len(panels[j]), _ROWS)

    map_single_threaded_blas([partial(finish_diagonal, 0)][: len(panels)])
    for j in range(len(panels)):
        map_single_threaded_blas([partial(finish_rows, j, i) for i in rows(j)])
        # The next diagonal, for which all wait, comes first.
        map_single_threaded_blas(
            [
                partial(subtract, j, later, i)
                for later in range(j + 1, len(panels))
                for i in (0, *rows(later))
            ]
        )


def solve_panels(panels: Sequence[np.ndarray], X: np.ndarray, *, transposed: bool = False) -> None:
    """Replace X (m, k), in Fortran's order, by L⁻¹ X or L⁻ᵀ X, for the panels of L."""
    m, k = X.shape
    trans = b"T" if transposed else b"N"

    def solve(left: int) -> None:
        for P in reversed(panels) if transposed else panels:
            meet(P, X[m - len(P) :, left:], min(_COLUMNS, k - left))

    def meet(P: np.ndarray, own: np.ndarray, n: int) -> None:
        """Solve for the rows of a panel's diagonal, before the rows below or (transposed) after."""
        w, apart = P.shape[1], _apart(P)
        below, rest = len(P) - w, own[w:]

        def subtract(i: int, size: int) -> None:
            if transposed:
                shape, terms = (size, n, below), (P[w:, i:], apart, rest, m, 1.0, own[i:], m)
            else:
                shape, terms = (size, n, w), (P[w + i :], apart, own, m, 1.0, rest[i:], m)
            blas("gemm", trans, b"N", *shape, -1.0, *terms)

        size, step = below, _NUMBERS_SOLVED // w
        if transposed:
            size, step = w * (below > 0), _COLUMNS_SOLVED if below > step else w
        works = [partial(subtract, i, min(step, size - i)) for i in range(0, size, step)]
        if transposed:
            map_single_threaded_blas(works)
        blas("trsm", b"L", b"L", trans, b"N", w, n, 1.0, P, apart, own, m)
        if not transposed:
            map_single_threaded_blas(works)

    map_single_threaded_blas([partial(solve, left) for left in range(0, k, _COLUMNS)])


def _apart(P: np.ndarray) -> int:
    """The leading dimension: elements from one column to the next, in Fortran's order."""
    return P.strides[1] // P.itemsize


def blas(name: str, *arguments: bytes | int | float | np.ndarray) -> None:
    """Call a function of SciPy's BLAS or LAPACK without Python's lock, which SciPy's wrappers hold.

    Parameters
    ----------
    name : str
        The name without the letter for the dtype; the dtype is that of the first array.
    *arguments
        All arguments of the Fortran function: letters as bytes, numbers, and arrays in Fortran's
        order. The function may write to the arrays.
    """
    single = next(a.dtype for a in arguments if isinstance(a, np.ndarray)) == np.float32
    number: Any = ctypes.c_float if single else ctypes.c_double

    def word(a: Any) -> Any:
        if isinstance(a, np.ndarray):  # ctypes would hide an interrupt if it asked for the address
            return ctypes.c_void_p(a.ctypes.data)
        if isinstance(a, bytes):
            return a
        return ctypes.byref(number(a) if isinstance(a, float) else ctypes.c_int(a))

    _routine(("s" if single else "d") + name)(*map(word, arguments))


@functools.cache
def _routine(name: str) -> Callable[..., None]:
    library = "cython_lapack" if name[1:] == "potrf" else "cython_blas"
    address = extending.get_cython_function_address(f"scipy.linalg.{library}", name)
    return ctypes.CFUNCTYPE(None)(address)


def mirror(A: np.ndarray) -> None:
    """Copy the lower triangle of A over the upper one, in blocks."""

    def task(rows: slice) -> None:
        i = rows.start
        for j in range(0, i + 1, _BLOCK):
            part = A[rows, j : j + _BLOCK].T
            if i == j:
                np.copyto(part.T, part, where=np.tri(len(part), k=-1, dtype=bool).T)
            else:
                A[j : j + _BLOCK, rows] = part

    parallel_rows(task, len(A), _BLOCK)
