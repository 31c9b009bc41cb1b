"""How the metric's value becomes the profile's argument: numbers that CPU and GPU kernels share."""

SQUARED, ROOT, SQUARE, DOT = range(4)
FORMS = {
    "squared": SQUARED,  # clamped at 0
    "root": ROOT,  # the root of that
    "square": SQUARE,  # the square, not clamped
    "dot": DOT,  # unchanged
}
