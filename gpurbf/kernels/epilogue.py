"""What makes an activation of a product, in numbers that CPU and GPU kernels share."""

from typing import Any, NamedTuple

# How the metric's value becomes the profile's argument.
SQUARED, ROOT, SQUARE, DOT = range(4)
FORMS = {
    "squared": SQUARED,  # clamped at 0
    "root": ROOT,  # the root of that
    "square": SQUARE,  # the square, not clamped
    "dot": DOT,  # unchanged
}


class Epilogue(NamedTuple):
    """From a product P to an activation: profile(form(factor * (row + column + alpha * P))).

    The sum is computed in the dtype of the terms (int32 wraps around, which is harmless where the
    sum itself fits), the rest in that of the activations.
    """

    alpha: Any  # -2 (squared Euclidean distances) or 1; on the CPU in the dtype of the terms
    factor: float
    form: int
    profile: int  # on the CPU its address, 0 where there is nothing to do; on a GPU its number
    gamma: float
    coef0: float
    degree: int
