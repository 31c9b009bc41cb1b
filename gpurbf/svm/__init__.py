"""SVC's solver: sequential minimal optimization on two levels, one binary problem a class pair.

    kernel values (kernel.py says what is asked of them)
        │
    slots.py   which rows are in memory and where, within a budget
    rows.py    the rows; a pair's kernel made of them, or of a ready matrix
        │
    binary.py  a pair: working set ─► inner steps ─► gradient of all its samples
        │
    schedule.py, pairs.py   all pairs: who runs when, on which threads; stop and progress

    side_by_side.py   all of it on a device, the host looking at it now and then

The hidden layer, a matrix or a user's function are the same to the solver.
"""

from gpurbf.svm.binary import Solution
from gpurbf.svm.cuda_pairs import keep_on_host
from gpurbf.svm.pair_kernel import KernelMatrix
from gpurbf.svm.pairs import MATRIX, solve_pairs

__all__ = ["MATRIX", "KernelMatrix", "Solution", "keep_on_host", "solve_pairs"]
