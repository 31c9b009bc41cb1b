"""Distances and dot products from products of shifted rows, of codes and of other numbers.

P = u'·v' is a product of shifted rows: u' = u - s of a sample and v' = v - t of a center. With the
zero point z of the quantization and e = s - t,

    |u - v|²         =  Σu'² + 2e Σu'  +  Σv'² - 2e Σv' + n e²             -  2 P
    (u - z)·(v - z)  =  (t - z) Σu'    +  (s - z) Σv' + n (s - z)(t - z)   +    P

so each is the sum of a row term, a column term and a multiple of P. Without a quantization both
shifts are equal (e = 0), and dot products are not shifted at all. Manhattan distances are computed
directly by their kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.quantize import Quantization

# In place of numbers of rows or inputs: all of them, in order.
ALL = np.empty(0, np.intp)
# About the number of centers whose mean is taken: of all samples of SVC it took one thread long.
_AVERAGED = 4096
# Inputs that are equal in all centers of a strip may be left out. They are searched for if C has
# _WORTH_A_LOOK numbers, since compiling for it takes time, and left out if they are the part
# _WORTH_LEAVING of a strip's inputs, judged by _SAMPLE centers.
_WORTH_A_LOOK, _WORTH_LEAVING, _SAMPLE = 1 << 17, 0.05, 63
# Largest n for which 255² n stays below 2³¹. Distances of codes in more inputs are computed in
# float64, which holds them exactly.
INT32_FEATURES = 33_025


class Coefficients(NamedTuple):
    """A row's term is quadratic · Σx² + linear · Σx + constant."""

    quadratic: int
    linear: int
    constant: int


class Terms(NamedTuple):
    """The value is term of the row + term of the column + alpha · P."""

    row: Coefficients
    column: Coefficients
    alpha: int


def terms_of(
    metric: str, n: int, quantization: Quantization | None, s: int = 0, t: int = 0
) -> Terms:
    """Terms to add to products of n inputs, samples shifted by s and centers by t."""
    if metric == "manhattan":
        return Terms(Coefficients(0, 0, 0), Coefficients(0, 0, 0), 1)
    if metric == "euclidean":
        e = s - t
        return Terms(Coefficients(1, 2 * e, 0), Coefficients(1, -2 * e, n * e * e), -2)
    z = 0 if quantization is None else quantization.zero_point
    a, b = s - z, t - z
    return Terms(Coefficients(0, b, 0), Coefficients(0, a, n * a * b), 1)


def unit(metric: str, quantization: Quantization | None) -> float:
    """Factor from distances of codes to distances of data: the only change of units."""
    if quantization is None:
        return 1.0
    return quantization.denominator ** (-1.0 if metric == "manhattan" else -2.0)


def usual_inputs(C: np.ndarray, shifted: bool) -> np.ndarray | None:
    """The value that most centers (m, n) have in each input; None if hardly any strip shares it.

    Centers shifted by this value are zero there, and add nothing to products: margins of images,
    categories in columns of 0 and 1. NaN marks inputs without such a value; if centers are not
    ``shifted``, the value can only be 0.
    """
    if C.size < _WORTH_A_LOOK or len(C) < _SAMPLE:
        return None
    sample = C[:: len(C) // _SAMPLE][:_SAMPLE]
    if shifted:  # a value that more than half of them have is their median
        usual = np.partition(sample, _SAMPLE // 2, axis=0)[_SAMPLE // 2].astype(np.float64)
    else:
        usual = np.zeros(C.shape[1])
    equal = sample == usual
    often = 2 * equal.sum(axis=0) > _SAMPLE
    if (often & equal[::2].all(axis=0)).mean() < _WORTH_LEAVING:
        return None
    return np.where(often, usual, np.nan)


def shift_of(C: np.ndarray, usual: np.ndarray | None) -> np.ndarray:
    """The mean of some centers, but the usual value (`usual_inputs`) in inputs that have one."""
    mean: np.ndarray = C[:: max(1, len(C) // _AVERAGED)].mean(axis=0, dtype=np.float64)
    return mean if usual is None else np.where(np.isnan(usual), mean, usual)


def range_shift(C: Any, dtype: np.dtype) -> Any:
    """A shift for Manhattan distances from centers C (m, n): the number of their range nearest 0.

    float64 numbers far from 0 lose fewer digits when they are rounded to float32. Where nothing is
    rounded, a shift would only round, so it is 0.
    """
    if C.dtype != np.float64 or dtype != np.float32 or not len(C):
        return 0.0
    return np.maximum(C.min(axis=0), 0) + np.minimum(C.max(axis=0), 0)
