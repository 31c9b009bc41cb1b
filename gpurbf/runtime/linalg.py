"""Factorizations of symmetric matrices on the CPU or a GPU, with as many BLAS threads as help."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.threads import map_single_threaded_blas, single_threaded_blas

extending = lazy_module("numba.extending")

# From so many rows on BLAS's threads are for a Cholesky factor: before, they wait about as long for
# each other as they work, and where others compute too a hundred times as long.
_THREADS = 2500
# Right-hand sides that are solved for at a time.
_COLUMNS = 200


class Factorizations(NamedTuple):
    """Functions of a linear algebra library that solve least squares, for float64 matrices.

    ``cholesky(A)`` is the lower L with L Lᵀ = A, may overwrite A, but leaves it as it was where it
    raises LinAlgError. ``solve_triangular(L, B, lower=True, trans=0)`` is L⁻¹ B, or L⁻ᵀ B with
    trans=1. ``eigh(A)`` gives eigenvalues and eigenvectors and may overwrite A.
    """

    cholesky: Callable[[Any], Any]
    solve_triangular: Callable[..., Any]
    eigh: Callable[[Any], tuple[Any, Any]]


def factorizations(xp: ModuleType) -> Factorizations:
    """Those of SciPy for NumPy, of CuPy for CuPy."""
    if xp is np:
        return Factorizations(
            _cholesky,
            _solve_triangular,
            lambda A: scipy.linalg.eigh(A.T, overwrite_a=True, check_finite=False),
        )
    from cupyx import errstate
    from cupyx.scipy.linalg import solve_triangular

    def cholesky(A: Any) -> Any:
        # CuPy returns rubbish instead of raising unless it is told to look.
        with errstate(linalg="raise"):
            return xp.linalg.cholesky(A)

    return Factorizations(cholesky, solve_triangular, xp.linalg.eigh)


def _cholesky(A: np.ndarray) -> np.ndarray:
    """In the memory of A; see :class:`Factorizations`."""
    with single_threaded_blas() if len(A) < _THREADS else nullcontext():
        return _factor(A)


def _factor(A: np.ndarray) -> np.ndarray:
    A, info = np.ascontiguousarray(A, np.float64), np.zeros(1, np.intc)
    diagonal, m = A.diagonal().copy(), len(A)
    # A is symmetric, so its transpose is the Fortran order that LAPACK works on in place.
    lapack("dpotrf", b"L", m, A, m, info)
    if info[0]:
        # LAPACK reads and writes the lower triangle: a failure leaves the upper one whole.
        mirror(A)
        np.fill_diagonal(A, diagonal)
        raise np.linalg.LinAlgError("not positive definite")
    return A.T


def _solve_triangular(L: np.ndarray, B: np.ndarray, *, lower: bool, trans: int = 0) -> np.ndarray:
    """Columns of a few at a time, by threads of ours; see :class:`Factorizations`."""
    L, X = np.asfortranarray(L), np.array(B, np.float64, order="F")
    (m, k), info = X.shape, np.zeros(1, np.intc)  # tells of zeros on the diagonal: there are none
    rule = b"L" if lower else b"U", b"T" if trans else b"N", b"N", m
    parts = [X[:, i : i + _COLUMNS] for i in range(0, k, _COLUMNS)]
    works = [partial(lapack, "dtrtrs", *rule, p.shape[1], L, m, p, m, info) for p in parts]
    map_single_threaded_blas(works)
    return X


def lapack(name: str, *arguments: bytes | int | np.ndarray) -> None:
    """Call a function of SciPy's LAPACK without Python's lock, which SciPy's wrappers hold.

    Parameters
    ----------
    name : str
    *arguments
        All that the function takes in Fortran: letters as bytes, numbers, and arrays of its types
        in Fortran's order, which it may write to.
    """
    address = extending.get_cython_function_address("scipy.linalg.cython_lapack", name)
    ctypes.CFUNCTYPE(None)(address)(
        *(
            ctypes.byref(ctypes.c_int(a)) if isinstance(a, int) else getattr(a, "ctypes", a)
            for a in arguments
        )
    )


def mirror(A: np.ndarray) -> None:
    """Copy the lower triangle of A over the upper one, in blocks."""
    block = 512
    for i in range(0, len(A), block):
        for j in range(0, i + block, block):
            part = A[i : i + block, j : j + block].T
            if i == j:
                np.copyto(part.T, part, where=np.tri(len(part), k=-1, dtype=bool).T)
            else:
                A[j : j + block, i : i + block] = part
