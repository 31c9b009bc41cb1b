"""CUDA graphs: launches that repeat are recorded once and launched as one."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpurbf.runtime.errors import warn


class Repeated:
    """Launches on arrays that stay where they are: one by one the first time, then as a graph.

    The first time compiles what is to be compiled, and is all there is where nothing repeats. What
    is recorded must neither ask for memory nor wait, and is kernels of our own: CuPy refuses cuBLAS
    while it records. Where a driver refuses more than that, launches stay one by one, and say so.
    """

    def __init__(self, xp: ModuleType, launches: Callable[[], None]) -> None:
        self.xp, self.launches = xp, launches
        self._times = 0
        self._graph: Any = None

    def __call__(self) -> None:
        """Make the launches on the current stream."""
        if self._times == 1:
            self._graph = self._recorded()
        self._times += 1
        if self._graph is None:
            self.launches()
        else:
            self._graph.launch()

    def _recorded(self) -> Any:
        stream = self.xp.cuda.Stream(non_blocking=True)
        try:
            with stream:
                stream.begin_capture()
                try:
                    self.launches()
                finally:
                    graph = stream.end_capture()
        except Exception as error:  # of CuPy, Numba or the driver; what is really wrong comes again
            warn(
                "Launches that repeat could not be recorded as a CUDA graph and are made one by "
                f"one, which takes longer ({type(error).__name__}: {error})."
            )
            return None
        return graph
