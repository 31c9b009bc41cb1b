"""Training of SVC from its parts: samples grouped and sorted, kernel, solver, result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from gpurbf.data.hashes import row_hashes
from gpurbf.layer.activation import Activation
from gpurbf.runtime.errors import warn
from gpurbf.runtime.stages import stage
from gpurbf.svm.binary import Solution
from gpurbf.svm.cuda_check import steps_on_device
from gpurbf.svm.kernel_matrix import GivenKernel, KernelRows
from gpurbf.svm.pairs import PairsSolver

# Rows that are compared at a time.
_COMPARED_ROWS = 2048
# Rounding of outputs, in tolerances, from which on a warning is given.
_MOST_TOLERANCES = 10.0


@dataclass
class Groups:
    """Samples in the solver's order; equal samples (same x, same class) form a group.

    ``members`` are sample numbers sorted by group. Group g is members[starts[g] : starts[g + 1]],
    its first member stands for it, and class c has groups class_starts[c] to class_starts[c + 1].
    """

    members: np.ndarray
    starts: np.ndarray
    class_starts: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """A sample of each group."""
        return self.members[self.starts[:-1]]

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum of values (N,) over each group."""
        return np.add.reduceat(values[self.members], self.starts[:-1])


@dataclass
class PairModels:
    """The trained pairs; support vectors are sorted by class, then by sample number.

    ``dual_coef`` (n_classes - 1, n_SV) is laid out as LIBSVM's: for a support vector of class i,
    row j - 1 is its coefficient against class j > i, row j against j < i.
    """

    support: np.ndarray
    n_support: np.ndarray
    dual_coef: np.ndarray
    solutions: list[Solution]
    backend: str
    description: str


@stage("prepare", "samples grouped")
def group_samples(
    X: Any, y: np.ndarray, weights: np.ndarray | None, *, by_key: bool = False
) -> Groups:
    """Group equal samples, and sort the groups by class.

    A sample given twice and a sample of weight 2 are the same term of the primal problem. Grouped,
    they are the same dual problem too, which otherwise has many solutions. If there are equal
    samples or unequal weights, groups are sorted by a key of their values, so that the solver takes
    the same path however the data were stored; otherwise samples keep their order, and the path is
    LIBSVM's.

    Parameters
    ----------
    X : ndarray or CSR of shape (N, n), or None
        None if samples cannot be compared (given kernels): each is its own group.
    y : ndarray of shape (N,)
        Class numbers.
    weights : ndarray of shape (N,), optional
    by_key : bool, default=False
        Sort groups by key even if these samples are all different: they are a part of data that
        has equal samples or unequal weights.
    """
    n_classes = int(y.max()) + 1
    same = np.zeros(len(y) + 1, bool)  # equal to the sample before; the last element is the end
    # Small types are sorted in one pass over their values.
    order = y.astype(np.min_scalar_type(n_classes)).argsort(kind="stable")
    if X is not None:
        keys = row_hashes(X, 0)
        by_key = by_key or not (weights is None or (weights == weights[0]).all())
        in_order = np.sort(keys)
        if by_key or (in_order[1:] == in_order[:-1]).any():
            sorted_ = np.lexsort((keys, y))
            keys, codes = keys[sorted_], y[sorted_]
            same[1:-1] = (keys[1:] == keys[:-1]) & (codes[1:] == codes[:-1])
            positions = same.nonzero()[0]
            for start in range(0, len(positions), _COMPARED_ROWS):
                # Keys may be equal by chance, so values are compared.
                some = positions[start : start + _COMPARED_ROWS]
                differences = X[sorted_[some - 1]] != X[sorted_[some]]
                same[some] = np.asarray(differences.sum(axis=1)).ravel() == 0
            if by_key or same.any():
                order = sorted_
    starts = (~same).nonzero()[0]
    return Groups(order, starts, y[order[starts[:-1]]].searchsorted(np.arange(n_classes + 1)))


@stage("output training", "pairs")
def train_pairs(
    X: Any,
    y: np.ndarray,
    C: np.ndarray,
    activation: Activation | None,
    *,
    groups: Groups,
    backend: str,
    precision: str,
    sizes: np.ndarray | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
    **options: Any,
) -> PairModels:
    """Train a binary SVC for each pair of classes.

    Parameters
    ----------
    X : Samples or ndarray
        A sample of each group, or the kernel matrix of all samples (N, N) if there is no
        activation.
    y : ndarray of shape (N,)
        Class numbers.
    C : ndarray of shape (N,)
        Upper bounds of the dual variables.
    activation : Activation or None
    groups : Groups
        See :func:`group_samples`.
    backend, precision
        See :class:`HiddenLayer`.
    sizes, **options
        See :class:`PairsSolver`.
    pairs : sequence of (int, int), optional
        Pairs to solve, in this order; by default all.

    Raises
    ------
    ValueError
        If a bound has become zero.
    """
    if not (C > 0).all():
        raise ValueError(
            "C times the weights of a sample is below the smallest float64 number and so 0: use a "
            "larger C, or larger weights."
        )
    starts = groups.class_starts
    n_classes = len(starts) - 1
    pairs = list(combinations(range(n_classes), 2)) if pairs is None else list(pairs)
    if activation is None:
        kernel: Any = GivenKernel(X, groups.first)
    else:
        n_samples = len(X) if sizes is None else int(sizes.sum())
        kernel = KernelRows(X, activation, backend, precision, n_samples)
        kernel.on_device, why = steps_on_device(kernel.backend_and_reason[0])
        kernel.description += why and f"; {why}"
    with kernel.allocator():
        solver = PairsSolver(kernel, starts, groups.sums(C), pairs, sizes=sizes, **options)
        solutions = solver.solve()
    _warn_if_values_are_coarse(solver.tol, solver.C, kernel.diagonal, solutions)
    table = np.zeros((n_classes - 1, starts[-1]))  # of groups, in LIBSVM's layout
    for (a, b), solution in zip(pairs, solutions):
        n_a = starts[a + 1] - starts[a]
        table[b - 1, starts[a] : starts[a + 1]] = solution.beta[:n_a]
        table[a, starts[b] : starts[b + 1]] = solution.beta[n_a:]
    support, dual_coef = _spread(table, groups, C, solver.C)
    n_support = np.bincount(y[support], minlength=n_classes)
    return PairModels(support, n_support, dual_coef, solutions, kernel.backend, kernel.description)


def _warn_if_values_are_coarse(
    tol: float, C: np.ndarray, diagonal: np.ndarray, solutions: Sequence[Solution]
) -> None:
    """Warn if conditions seem to hold only because float64 rounds kernel values or coefficients."""
    eps, largest = float(np.finfo(np.float64).eps), float(np.abs(diagonal).max(initial=0))
    rounding = eps * largest
    if rounding * float(C.max()) * len(C) ** 0.5 <= (limit := _MOST_TOLERANCES * tol):
        return  # no coefficient is larger than its bound
    error = 0.0
    for beta, steps in ((each.beta, each.steps) for each in solutions if each.converged):
        size = float(np.abs(beta).max()) * np.count_nonzero(beta) ** 0.5
        # If the sum is further from 0 than steps of this size leave it, larger ones were lost.
        lost = abs(float(beta.sum())) - eps * size * steps**0.5
        error = max(error, rounding * size, largest * lost)
    if error > limit:
        warn(
            "float64 rounds kernel values and coefficients, so outputs are off by about "
            f"{error:.1g} and the optimality conditions do not hold to tol={tol:g}. Center and "
            "scale the data first, with StandardScaler for example, or take a smaller C."
        )


def _spread(
    table: np.ndarray, groups: Groups, C: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Support vectors and their coefficients, equal samples in proportion to C."""
    chosen = (table != 0).any(axis=0)
    sizes = groups.starts[1:] - groups.starts[:-1]
    members, group_of = groups.members[chosen.repeat(sizes)], chosen.nonzero()[0]
    group_of = group_of.repeat(sizes[group_of])
    # Groups are sorted by class.
    order = np.lexsort((members, groups.class_starts.searchsorted(group_of, "right")))
    members, group_of = members[order], group_of[order]
    own, sums = C[members], bounds[group_of]
    # Infinite bounds count as equal. If a group is at its bound, its samples are exactly at theirs.
    share = np.divide(own, sums, out=1 / sizes[group_of], where=np.isfinite(sums))
    coefficients = np.empty((len(table), len(members)))  # in C's order, as scikit-learn's
    for row, out in zip(table, coefficients):  # of all rows, parts would take as much memory
        wide = row[group_of]
        out[:] = np.where(np.abs(wide) >= sums, np.copysign(own, wide), share * wide)
    kept = (coefficients != 0).any(axis=0)  # a share may be too small for a number
    if kept.all():
        return members, coefficients
    return members[kept], coefficients.compress(kept, axis=1)
