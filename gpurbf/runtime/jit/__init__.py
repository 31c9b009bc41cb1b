"""Numba's functions as the kernels of all rooms need them: kept on disk, without the GIL.

caching.py    kernels kept on disk, compiled again where a file that they need has changed
compiling.py  a line on stderr while they are compiled
llvm.py       what Numba lacks: calls by address, attributes of functions, vector instructions
cuda_api.py   the one import of numba.cuda
"""

import gc
from contextlib import contextmanager

__all__ = ["cpu_target", "numba", "without_collecting"]

# Some interpreters begin with a few hundred objects frozen. More are somebody's, and stay so.
_FEW = 2000


@contextmanager
def without_collecting():
    """No garbage is looked for inside, in the whole process; reference counts work as ever.

    Numba makes some hundred thousand objects that stay when it is imported, and more when it
    compiles. Looking in between for garbage among them and all those of scikit-learn takes as long
    as making them: half of the time to a first fit, and a sixth of a compilation. To look soon
    after is no better: then all of them are new and looked at twice.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if gc.get_freeze_count() < _FEW:
                # All that is there is old from now on, without being looked at.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


with without_collecting():
    import numba
    from numba.core.registry import cpu_target

    from gpurbf.runtime.jit.compiling import announce

announce()
