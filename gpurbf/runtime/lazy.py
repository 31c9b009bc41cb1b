"""Modules that are imported when something of them is first used."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from gpurbf.runtime.stages import time_unlocked


class lazy_module:
    """The module ``name``, imported at its first use: to import Numba takes a third of a second."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = importlib.import_module(self._name)
        found = getattr(self._module, attribute)
        # A kernel, and it runs without Python's lock: a profile tells the two apart.
        on_cpu = hasattr(found, "py_func") and not hasattr(found, "__getitem__")  # as CUDA's has
        return time_unlocked(found) if on_cpu else found
