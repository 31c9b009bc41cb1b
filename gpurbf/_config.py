"""Settings of a thread: the default backend and the memory that working arrays may take."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["config_context", "get_config"]

_DEFAULTS: dict[str, Any] = {"backend": "auto", "memory": 256}
_local = threading.local()


def get_config() -> dict[str, Any]:
    """The settings in force in this thread.

    Returns
    -------
    config : dict
        ``backend``: what ``backend="auto"`` means. ``memory``: megabytes that the tiles of the
        hidden layer may take beyond the input, the model and the result.
    """
    return getattr(_local, "config", _DEFAULTS).copy()


@contextmanager
def config_context(**settings: Any) -> Iterator[None]:
    """Change settings inside a ``with`` block, in this thread only.

    Parameters
    ----------
    **settings
        ``backend`` (str) and ``memory`` (megabytes, > 0), see :func:`get_config`.

    Raises
    ------
    ValueError
        For an unknown setting or a memory that is not positive.

    Examples
    --------
    >>> from gpurbf import config_context
    >>> with config_context(backend="numpy", memory=64):
    ...     pass
    """
    if unknown := sorted(set(settings) - set(_DEFAULTS)):
        raise ValueError(f"Unknown settings {unknown}: there are {sorted(_DEFAULTS)}.")
    if not settings.get("memory", 1) > 0:
        raise ValueError(f"memory must be a number of megabytes > 0, got {settings['memory']!r}.")
    before = get_config()
    _local.config = before | settings
    try:
        yield
    finally:
        _local.config = before
