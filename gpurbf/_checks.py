"""Checks of single parameters, with messages that name the parameter and what it takes."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

__all__ = ["check_number", "check_option"]


def plain(value: Any) -> Any:
    """A value as a message should show it: 0, not np.int64(0)."""
    return value.item() if isinstance(value, np.generic) else value


def check_option(name: str, value: Any, allowed: tuple[str, ...], also: str = "") -> None:
    """A name out of a list."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(
            f"Unknown {name} {plain(value)!r}: use one of {sorted(allowed)} {also}".strip()
        )


def check_number(name: str, value: Any, kind: Any, low: float, *, above: bool = False) -> None:
    """A finite number of that kind, at least (or above) low; True and False are not numbers."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        expected = "an integer" if kind is numbers.Integral else "a number"
        raise TypeError(f"{name} must be {expected}, got {plain(value)!r}.")
    if not np.isfinite(value) or value < low or (above and value == low):
        raise ValueError(f"{name} must be {'>' if above else '>='} {low}, got {plain(value)!r}.")
