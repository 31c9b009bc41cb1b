"""From products to activations on the CPU: the fused Numba pass, on all threads."""

from __future__ import annotations

import numpy as np

from gpurbf.backends import Activation
from gpurbf.backends.threads import parallel_for

# The distance itself is what these want of; the other profiles take its square.
_OF_DISTANCE = frozenset({"laplacian", "triangular"})
_ROWS = 32


def form(activation: Activation) -> str:
    """How the metric's value becomes the profile's argument (kernels/activation.py, FORMS)."""
    of_distance = activation.profile in _OF_DISTANCE
    if activation.metric == "dot":
        return "dot"
    if activation.metric == "manhattan":
        return "dot" if of_distance else "square"
    return "root" if of_distance else "squared"


def epilogue(
    P: np.ndarray,
    row_terms: np.ndarray,
    column_terms: np.ndarray,
    alpha: float,
    factor: float,
    activation: Activation,
    out: np.ndarray,
) -> None:
    """Write profile(form(factor * (row + column + alpha * P))) into out, which may be P itself."""
    from gpurbf.kernels.activation import epilogue_arguments, epilogue_rows

    profile = "identity" if callable(activation.profile) else activation.profile
    arguments = epilogue_arguments(
        P,
        row_terms,
        column_terms,
        alpha,
        factor,
        form(activation),
        profile,
        activation.gamma,
        activation.coef0,
        activation.degree,
        out,
    )
    n_tasks = -(-len(P) // _ROWS)
    parallel_for(
        lambda i: epilogue_rows(i * _ROWS, min((i + 1) * _ROWS, len(P)), *arguments), n_tasks
    )
    if callable(activation.profile):
        out[:] = activation.profile(out)
