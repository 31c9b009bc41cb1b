"""Time calls: once, or the best of several."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def seconds(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def best(call: Callable[[], Any], runs: int) -> float:
    """Seconds of the fastest of so many calls: one of them finds the machine undisturbed."""
    return min(seconds(call) for _ in range(runs))
