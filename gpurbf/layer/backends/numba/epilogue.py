"""From products to activations on the CPU: the fused Numba pass, on all threads."""

from __future__ import annotations

import numpy as np

from gpurbf.layer.activation import FORMS, Activation, Epilogue, form, in_tile
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.threads import parallel_rows

activation_kernels = lazy_module("gpurbf.layer.backends.numba.activation_kernels")


_ROWS = 32


def compiled(activation: Activation, alpha: np.number, factor: float, dtype: np.dtype) -> Epilogue:
    """The kernels' `Epilogue` for activations of dtype; alpha is of the terms' dtype."""
    return Epilogue(
        alpha,
        float(factor),
        FORMS[form(activation)],
        activation_kernels.profile_address(in_tile(activation), dtype),
        float(activation.gamma),
        float(activation.coef0),
        int(activation.degree),
    )


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

    rule = compiled(activation, column_terms.dtype.type(alpha), factor, out.dtype)

    def task(rows: slice) -> None:
        given = P, row_terms, column_terms, rule, out
        activation_kernels.epilogue_rows(rows.start, rows.stop, *given)

    parallel_rows(task, len(P), _ROWS)
    if callable(activation.profile):
        out[:] = activation.profile(out)
