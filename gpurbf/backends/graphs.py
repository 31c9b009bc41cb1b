"""CUDA graphs: launches that repeat are recorded once and launched as one."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["Repeated"]


class Repeated:
    """Launches on arrays that stay where they are: one by one the first time, then as a graph.

    The first time compiles what is to be compiled, and is all there is where nothing repeats. What
    is recorded must neither ask for memory nor wait, and is kernels of our own: CuPy refuses cuBLAS
    while it records.
    """

    def __init__(self, xp: ModuleType, launches: Callable[[], None]) -> None:
        self.xp, self.launches = xp, launches
        self._known = False
        self._graph: Any = None

    def __call__(self) -> None:
        """Make the launches on the current stream."""
        if not self._known:
            self.launches()
            self._known = True
            return
        if self._graph is None:
            self._graph = self._recorded()
        self._graph.launch()

    def _recorded(self) -> Any:
        stream = self.xp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                self.launches()
            finally:
                graph = stream.end_capture()
        return graph
