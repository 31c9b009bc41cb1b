"""The garbage collector rests where objects are made that stay.

Numba makes some hundred thousand of them when it is imported, and more when it compiles. Looking in
between for garbage among them and all those of scikit-learn takes as long as making them: half of
the time to a first fit, and a sixth of a compilation. To look soon after is no better: then all of
them are new and looked at twice.
"""

import gc
from contextlib import contextmanager

# Some interpreters begin with a few hundred objects frozen. More are somebody's, and stay so.
_FEW = 2000


@contextmanager
def without_collecting():
    """No garbage is looked for inside, in the whole process; reference counts work as ever."""
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
