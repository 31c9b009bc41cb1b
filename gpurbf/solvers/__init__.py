"""Output solvers: how the weights W (m, k) of the hidden layer's outputs are found.

    ridge.py      `Ridge`: least squares in closed form, from sums over tiles of H
    cg.py         `CG`: the same, or kernel ridge regression, by conjugate gradients
    lms.py        `LMS`: the on-line delta rule, sample by sample
    one_hot.py    `OneHot`: no training, every center speaks for its own class
    smo/          the support vector machine's, over rows of a kernel matrix

A solver of ``SOLVERS`` is a small object that holds its parameters; ``needs`` says of what it makes
the weights, and so which method it has:

``"sums"``
    ``solve(normal, keep=False)`` gives a `RidgeSolution` from `NormalEquations`, which are fed
    batch by batch; ``keep``: they are needed again.
``"products"``
    ``system(layer, X, T, weights, places)`` and ``iterations(system)``, which yields a `CGSolution`
    after each; see `CG`.
``"samples"``
    ``train(layer, X, T, weights, *, start, order)`` gives W (m, k). ``layer`` is a
    :class:`gpurbf.layer.protocol.Layer`, T (N, k) are the targets of samples X, weights (N,) theirs
    or None. ``start`` (m, k) are the targets of centers that are samples, or what was learned
    before; None if there is nothing to start from. ``order`` (N',) are the rows as a rule that
    takes sample by sample should see them, None for all as they come.
``"center targets"``
    The same, and ``start`` is there.

``check()``, if there is one, raises for a bad parameter before any work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gpurbf.solvers.cg.cg import CG, CGSolution
from gpurbf.solvers.lms import LMS, DivergenceError
from gpurbf.solvers.one_hot import OneHot
from gpurbf.solvers.ridge.normal_equations import NormalEquations, Ridge, RidgeSolution

__all__ = [
    "CG",
    "LMS",
    "NEEDS",
    "SOLVERS",
    "CGSolution",
    "DivergenceError",
    "NormalEquations",
    "OneHot",
    "Ridge",
    "RidgeSolution",
    "automatic",
    "make_solver",
]


NEEDS = ("sums", "products", "samples", "center targets")
SOLVERS: dict[str, Callable[..., Any]] = {
    "ridge": Ridge,
    "cg": CG,
    "lms": LMS,
    "one-hot": OneHot,
}
# Centers for which the closed form, 12 m² bytes and m³/3 operations, is still taken.
_DIRECT = 10_000


def automatic(n_centers: int) -> tuple[str, str]:
    """The name of the solver that "auto" means for so many centers, and why."""
    few = n_centers <= _DIRECT
    return (
        "ridge" if few else "cg",
        f"{n_centers:,} centers are {'up to' if few else 'over'} {_DIRECT:,}",
    )


def make_solver(solver: Any, **parameters: Any) -> Any:
    """The solver of that name, with those of the parameters that it takes; an object as it is.

    Raises
    ------
    ValueError, TypeError
        If there is no such solver, or one of its parameters is bad.
    """
    if isinstance(solver, str) and solver in SOLVERS:
        taken = inspect.signature(SOLVERS[solver]).parameters
        solver = SOLVERS[solver](**{k: v for k, v in parameters.items() if k in taken})
    if inspect.isclass(solver) or getattr(solver, "needs", None) not in NEEDS:
        raise ValueError(
            f"Unknown solver {solver!r}: use one of {sorted(SOLVERS)} or an object such as "
            "gpurbf.solvers.lms.LMS(learning_rate=0.01)."
        )
    if hasattr(solver, "check"):
        solver.check()
    return solver
