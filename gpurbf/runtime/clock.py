"""Time calls: once, the best of several, many in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Name = TypeVar("Name")


def seconds(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def best(call: Callable[[], Any], runs: int) -> float:
    """Seconds of the fastest of so many calls: one of them finds the machine undisturbed."""
    return min(seconds(call) for _ in range(runs))


def in_turn(
    names: Iterable[Name], rounds: Iterable[int], measure: Callable[[Name], float]
) -> dict[Name, list[float]]:
    """``measure(name)`` of each once a round, one after the other, every other round in reverse.

    What disturbs the machine for a while then meets all of them, not one, and each of two is first
    as often as the other.
    """
    found: dict[Name, list[float]] = {name: [] for name in names}
    for done in rounds:
        for name in reversed(found) if done % 2 else found:
            found[name].append(measure(name))
    return found
