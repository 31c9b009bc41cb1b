"""Settings of a thread: the default backend and the memory that working arrays may take."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from gpurbf.runtime import memory

_DEFAULTS: dict[str, Any] = {"backend": "auto", "memory": "auto", "gpu_memory": None}
# Megabytes of working arrays where `memory` is "auto".
_WORKING_MEGABYTES = 256
# Each thread has its own value of a context variable; threads that work for it use its context
# (runtime/threads.py).
_settings: ContextVar[dict[str, Any]] = ContextVar("gpurbf settings", default=_DEFAULTS)


def get_config() -> dict[str, Any]:
    """The settings in force in this thread.

    Returns
    -------
    config : dict
        ``backend``: what ``backend="auto"`` means. ``memory``: megabytes for tiles of the hidden
        layer and for arrays that are kept for reuse, in addition to the input, the model and the
        result; "auto" is 256 for tiles and half of the free memory for kept arrays (H of
        :class:`gpurbf.solvers.CG`, of :class:`gpurbf.solvers.LMS`, and of the radii that FSVC tries
        at a time). Keeping arrays does not change results. ``gpu_memory``: megabytes of a GPU that
        the package may take; None is the environment variable ``GPURBF_GPU_MEMORY`` or, if that is
        not set, 80 % of the free memory.
    """
    return _settings.get().copy()


def set_config(**settings: Any) -> None:
    """Change settings in this thread, until they are changed again.

    Parameters
    ----------
    **settings
        ``backend`` (str), ``memory`` (megabytes, > 0, or "auto") and ``gpu_memory`` (megabytes,
        > 0, or None), see :func:`get_config`.

    Raises
    ------
    ValueError
        For an unknown setting or a memory that is not positive and finite.
    TypeError
        For a backend that is no string. An unknown name is an error of the next fit or prediction.

    Examples
    --------
    >>> from gpurbf import set_config
    >>> set_config(memory=256)
    """
    if unknown := sorted(set(settings) - set(_DEFAULTS)):
        raise ValueError(f"Unknown settings {unknown}: use some of {sorted(_DEFAULTS)}.")
    if not isinstance(backend := settings.get("backend", "auto"), str):
        raise TypeError(f"backend must be 'auto' or a backend's name, got {backend!r}.")
    for name in ("memory", "gpu_memory"):
        value = settings.get(name, _DEFAULTS[name])
        if value != _DEFAULTS[name] and not _is_megabytes(value):
            raise ValueError(
                f"{name} must be {_DEFAULTS[name]!r} or a finite number of megabytes > 0, got "
                f"{value!r}."
            )
    _settings.set(_settings.get() | settings)


def _is_megabytes(value: Any) -> bool:
    """Whether a value is a positive number of megabytes whose bytes float64 holds."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return 0 < 2**20 * float(value) < math.inf
    except OverflowError:
        return False


@contextmanager
def config_context(**settings: Any) -> Iterator[None]:
    """Change settings inside a ``with`` block, in this thread only.

    In free-threaded Python, threads that are started in the block inherit the settings.

    Parameters
    ----------
    **settings
        Those of :func:`set_config`, with the same allowed values.

    Examples
    --------
    >>> from gpurbf import config_context
    >>> with config_context(backend="numpy", memory=64):
    ...     pass
    """
    before = _settings.get()
    try:  # first: an interrupt may come after any call
        set_config(**settings)
        yield
    finally:
        _settings.set(before)


def working_bytes() -> int:
    """Bytes that tiles and other working arrays may take."""
    megabytes = _settings.get()["memory"]
    return int(2**20 * float(_WORKING_MEGABYTES if megabytes == "auto" else megabytes))


def bytes_to_keep(share: float) -> float:
    """Bytes for arrays that are kept for reuse: half of the free memory, or a share of a limit."""
    if _settings.get()["memory"] == "auto" and math.isfinite(free := memory.free_bytes()):
        return free / 2
    return share * working_bytes()
