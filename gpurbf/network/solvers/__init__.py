"""Output solvers: how the weights W (m, k) of the hidden layer's outputs are found.

    ridge.py    least squares from sums over tiles of H (`NormalEquations`), in closed form
    SOLVERS     solvers that see the samples: functions of one signature, add yours here
    smo/        the support vector machine's, over rows of a kernel matrix

A function of ``SOLVERS`` is called as ``solver(layer, X, T, weights, *, center_targets)`` and
returns W (m, k). ``layer.outputs`` gives activations, T (N, k) are targets, weights (N,) or None
those of the samples, center_targets (m, k) the targets of centers that are samples, else None.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpurbf.network.solvers.lms import lms
from gpurbf.network.solvers.one_hot import one_hot

__all__ = ["SOLVERS"]

SOLVERS: dict[str, Callable[..., np.ndarray]] = {"lms": lms, "one-hot": one_hot}
