"""Exact sums: the result is the same for any order of the terms and any split into parts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

# Each mantissa is split into two integers of this many bits. float64, which has 53, adds up to 2²⁶
# such integers exactly.
_BITS = 27
_TERMS = 1 << 25
# Python adds up to this many terms in less time than making arrays of them takes.
_FEW = 256


def exact_sum(values: np.ndarray, weights: np.ndarray | None = None) -> Fraction | float:
    """Σ values, or Σ weights · values, of float64 arrays (N,); a float if it is not finite.

    Values may also be uint64, with a sum below 2⁶⁴. Fractions of several parts add up to that of
    the whole, and ``float`` rounds it once.
    """
    if weights is None and values.dtype.kind == "u":
        return Fraction(int(values.sum()))
    if weights is None and len(values) <= _FEW and (few := _of_few(values.tolist())) is not None:
        return few
    with np.errstate(over="ignore", invalid="ignore"):
        # Not by BLAS: a long product would wake its threads.
        rough = float(values.sum() if weights is None else np.einsum("i,i", weights, values))
    if not np.isfinite(rough):
        return rough
    total = Fraction(0)
    for start in range(0, len(values), _TERMS):
        part = slice(start, start + _TERMS)
        mantissas, exponents = np.frexp(values[part])
        if weights is not None:  # twice as many terms: rounded products, and their rounding errors
            others, powers = np.frexp(weights[part])
            product = mantissas * others
            terms = np.concatenate([product, _rounded_off(mantissas, others, product)])
            mantissas, more = np.frexp(terms)
            exponents = np.tile(exponents + powers, 2) + more
        total += _added(mantissas, exponents)
    return total


def _of_few(terms: list[float]) -> Fraction | None:
    """The sum of a few terms; None if it, or an intermediate sum, may not be finite.

    ``fsum`` rounds the sum once; the rounding error is summed in turn, until nothing is left.
    """
    numerator, denominator = 0, 1
    try:
        while part := math.fsum(terms):
            n, d = part.as_integer_ratio()  # d is a power of 2
            if d > denominator:
                numerator, denominator = numerator * (d // denominator), d
            numerator += n * (denominator // d)
            terms.append(-part)
    except (OverflowError, ValueError):
        return None
    return Fraction(numerator, denominator)


def _rounded_off(a: np.ndarray, b: np.ndarray, product: np.ndarray) -> np.ndarray:
    """a b - product, exactly (Dekker, 1971)."""
    a_high, b_high = (np.ldexp(np.rint(np.ldexp(x, _BITS - 1)), 1 - _BITS) for x in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _added(mantissas: np.ndarray, exponents: np.ndarray) -> Fraction:
    """Σ mantissas · 2^exponents, exactly: integers are added up by exponent."""
    least = int(exponents.min())
    scaled = mantissas * 2.0**_BITS
    high = np.floor(scaled)
    low = (scaled - high) * 2.0**_BITS
    exponents = exponents - least
    uppers, lowers = (np.bincount(exponents, part).tolist() for part in (high, low))
    total = 0
    for power, (upper, lower) in enumerate(zip(uppers, lowers)):
        total += ((int(upper) << _BITS) + int(lower)) << power
    power = least - 2 * _BITS
    return Fraction(total << power) if power >= 0 else Fraction(total, 1 << -power)
