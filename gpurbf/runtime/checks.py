"""Checks of single parameters, with messages that name the parameter and its allowed values."""

from __future__ import annotations

import math
import numbers
import sys
from typing import Any

import numpy as np

from gpurbf.runtime.errors import WrongType


def plain(value: Any) -> Any:
    """A value as a message should show it: 0, not np.int64(0)."""
    return value.item() if isinstance(value, np.generic) else value


def check_option(name: str, value: Any, allowed: tuple[str, ...], also: str = "") -> None:
    """Check that the value is one of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(
            f"Unknown {name} {plain(value)!r}: use one of {sorted(allowed)} {also}".strip()
        )


def check_number(name: str, value: Any, kind: Any, low: float, *, above: bool = False) -> None:
    """Check for a finite number of that kind, at least (or above) low; bools are refused."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        expected = "an integer" if kind is numbers.Integral else "a number"
        raise WrongType(f"{name} must be {expected}, got {plain(value)!r}.")
    value, most = plain(value), sys.float_info.max  # an int may be larger
    if not -most <= value <= most or value < low or (above and value == low):
        unbounded = low == -math.inf or value > most
        allowed = "finite" if unbounded else f"{'>' if above else '>='} {low}"
        raise ValueError(f"{name} must be {allowed}, got {value!r}.")


def check_flag(name: str, value: Any) -> None:
    """Check for True or False; as a condition, even the text "False" would be true."""
    if not isinstance(value, (bool, np.bool_)):
        raise WrongType(f"{name} must be True or False, got {plain(value)!r}.")


def check_verbose(value: Any) -> None:
    """Check for True, False, or the level of detail: an integer, at least 0."""
    if not isinstance(value, (bool, np.bool_)):
        check_number("verbose", value, numbers.Integral, 0)


def check_option_or_number(
    name: str, value: Any, allowed: tuple[str, ...], kind: Any, low: float, *, above: bool = False
) -> None:
    """Check for an allowed name or a number."""
    if isinstance(value, str):
        check_option(name, value, allowed, f"or a number {'>' if above else '>='} {low}")
    else:
        check_number(name, value, kind, low, above=above)
