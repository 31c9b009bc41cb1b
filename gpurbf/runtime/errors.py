"""Errors and warnings of the package; a warning names the line that called the package."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class BackendUnavailable(RuntimeError):
    """A backend that was asked for by name cannot run here; the message says how to get it."""


# Modules (and those in them) whose frames are between that line and the warning: ours, and wrappers
# of our methods.
_BETWEEN = ("gpurbf.", "contextlib.", "sklearn.callback.")


_local = threading.local()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the package's warnings in the block, in this thread only, unlike `warnings`."""
    before = getattr(_local, "quiet", False)
    _local.quiet = True
    try:
        yield
    finally:
        _local.quiet = before


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is not the package's own."""
    if getattr(_local, "quiet", False):
        return
    level, frame = 2, sys._getframe(1)
    while f"{frame.f_globals.get('__name__', '')}.".startswith(_BETWEEN) and frame.f_back:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
