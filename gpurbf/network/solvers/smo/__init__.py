"""SVC's solver: sequential minimal optimization on two levels, one binary problem a class pair.

    kernel values ─► rows.py    blocks of rows, kept and shared between pairs within a budget
                        │
                     binary.py  a pair: working set ─► inner steps ─► gradient of all its samples
                        │
                     pairs.py   all pairs: who runs when, on which threads; stop and progress

The kernel comes as an object with ``values(samples, columns, out)``, ``diagonal``, ``dtype`` and
``matrix``, so the hidden layer, a matrix or a user's function are the same to the solver.
"""

from gpurbf.network.solvers.smo.binary import Solution
from gpurbf.network.solvers.smo.pairs import solve_pairs

__all__ = ["Solution", "solve_pairs"]
