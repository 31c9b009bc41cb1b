"""Where compiled kernels are kept."""

from __future__ import annotations

from pathlib import Path

__all__ = ["cache_folder", "say_nothing"]


def cache_folder() -> Path:
    """The folder that Numba chose; RuntimeError if there is none that can be written to."""
    from gpurbf.kernels import compiling

    return Path(compiling.cache_folder())


def say_nothing() -> None:
    """No line about compiling in this process: the caller asks for it."""
    from gpurbf.kernels import compiling

    compiling.announcer.said = True
