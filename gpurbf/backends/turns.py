"""Threads that call one kernel after the other take turns with what they do in between."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["taking_turns"]


@contextmanager
def taking_turns(does: bool = True) -> Iterator[None]:
    """This thread does little but to call kernels of SVC's solver: others need not sleep for it.

    See :mod:`gpurbf.kernels.turns`. Without a lock of Python's there is nothing to wait for.
    """
    if not does or not getattr(sys, "_is_gil_enabled", lambda: True)():
        yield
        return
    from gpurbf.kernels import turns

    # If an interrupt comes first, one too few are counted: waiting for nobody would cost more.
    try:
        turns.enter()
        yield
    finally:
        turns.leave()


def _after_fork() -> None:
    """A forked child has none of its parent's threads."""
    turns = sys.modules.get("gpurbf.kernels.turns")
    if turns is not None:
        turns.between[:] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
