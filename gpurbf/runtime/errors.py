"""Errors, warnings and messages; a warning names the line that called the package."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar


class BackendUnavailable(RuntimeError):
    """A backend that was asked for by name cannot run here; the message says how to get it."""


class NoCacheFolder(RuntimeError):
    """Numba found no folder to keep compiled kernels in."""


class WrongType(TypeError, ValueError):
    """A parameter has a wrong type: scikit-learn's error for this is both, too."""


class OutOfRange(FloatingPointError):
    """Numbers of this kind are too large or small for the arithmetic: the text says which kind."""


# Modules (and those in them) whose frames are between that line and the warning: ours, and wrappers
# of our methods.
_BETWEEN = ("gpurbf.", "contextlib.", "sklearn.callback.")


_quiet: ContextVar[bool] = ContextVar("gpurbf quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the package's warnings in the block: this thread's, and those of its helpers.

    Python's own `warnings` would suppress those of all threads.
    """
    before = _quiet.get()
    try:  # first: an interrupt may come after any call
        _quiet.set(True)
        yield
    finally:
        _quiet.set(before)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is not the package's own."""
    if _quiet.get():
        return
    level, frame = 2, sys._getframe(1)
    while f"{frame.f_globals.get('__name__', '')}.".startswith(_BETWEEN) and frame.f_back:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def inform(line: str) -> None:
    """Print a line on stderr; a call that has a message does not fail where nobody takes it."""
    with suppress(OSError, ValueError):  # full, or closed
        if sys.stderr is not None:  # else `print` would take stdout
            print(line, file=sys.stderr, flush=True)
