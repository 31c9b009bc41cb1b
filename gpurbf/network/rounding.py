"""How far kernel values in float32 tiles are from those in float64."""

from __future__ import annotations

import numpy as np

from gpurbf.backends import Activation

__all__ = ["float32_rounding"]

_UNIT = float(np.finfo(np.float32).eps) / 2
# Samples that tell how far the data spread.
_SAMPLES = 4096


def float32_rounding(X: np.ndarray, activation: Activation) -> float:
    """Root mean square error of exp(-gamma d²) or exp(-gamma d) for real samples X (N, n).

    Roundings count as independent (Higham, Mary, "A new approach to probabilistic rounding error
    analysis", 2019). A squared distance is made of |x|², |c|² and x·c, less the centers' mean, and
    its error is of the size of their last digits; a distance of sums of |x - c|, of which each
    loses the last digits of x and c. What is wrong by e in the exponent is wrong by e K, and K
    itself is rounded.
    """
    # Any data have as many samples as are needed, evenly spread, in their order.
    some = X[:: max(1, len(X) // _SAMPLES)].astype(np.float64)
    if activation.metric == "manhattan":
        size = np.abs(some).sum(axis=1)
    else:
        centered = some - some.mean(axis=0)
        size = np.einsum("ij,ij->i", centered, centered)
    return _UNIT * (1 + 2 * activation.gamma * float(np.sqrt(np.mean(size**2))))
