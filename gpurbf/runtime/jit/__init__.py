"""Numba for the kernels of all subpackages: kept on disk, running without the GIL.

__init__.py  imports Numba, and prints a line on stderr when compiling has taken a second
caching.py   kernels kept on disk, compiled again if a source file that they need has changed
llvm.py      what Numba lacks: calls by address, attributes of functions, vector instructions
cuda_api.py  the one import of numba.cuda
"""

import pathlib
import time

from gpurbf.runtime.errors import NoCacheFolder, inform
from gpurbf.runtime.lazy import without_collecting

__all__ = ["cpu_target", "numba"]

SECONDS = 1.0

with without_collecting():
    import numba
    from numba.core import event
    from numba.core.registry import CPUDispatcher, cpu_target


def _nothing():
    """Never called: it shows where Numba keeps compiled functions of this folder."""


try:
    _cached = CPUDispatcher(_nothing)
    _cached.enable_caching()
except RuntimeError as error:
    raise NoCacheFolder(
        "Numba found no folder to keep compiled kernels in: set NUMBA_CACHE_DIR to one that this "
        f"user can write to ({error})."
    ) from error


def cache_folder():
    """Where compiled kernels are kept: it has one folder for those of each of our folders."""
    path = pathlib.Path(_cached.stats.cache_path)
    return str(path.parents[2] if path.name == "__pycache__" else path.parent)


class Announcer(event.Listener):
    """Says once in a process that kernels are being compiled; silent if all are in the cache.

    It counts the time of passes of Numba's compiler, which only compilation has. A pass inside
    another is not counted twice.
    """

    def __init__(self, clock=time.perf_counter):
        self.clock = clock
        self.depth, self.began, self.spent, self.said = 0, 0.0, 0.0, False

    def on_start(self, event):
        """A pass begins."""
        module = str((event.data or {}).get("module", ""))
        if self.depth or module.startswith("gpurbf."):
            if not self.depth:  # as if there had been no break since the last pass
                self.began = self.clock() - self.spent
            self.depth += 1

    def on_end(self, event):
        """A pass ends."""
        if not self.depth:
            return
        self.depth -= 1
        self.spent = self.clock() - self.began
        if not self.said and self.spent > SECONDS:
            self.said = True
            inform(
                "gpurbf: compiling kernels for this CPU, once; they are cached in "
                f"{cache_folder()} (NUMBA_CACHE_DIR names another folder). Precompile with "
                "`python -m gpurbf warmup`."
            )


announcer = Announcer()
event.register("numba:run_pass", announcer)
