"""The garbage collector rests where objects are made that stay.

Numba makes some hundred thousand of them when it is imported, and more when it compiles. Looking in
between for garbage among them and all those of scikit-learn takes as long as making them: half of
the time to a first fit, and a sixth of a compilation.
"""

import gc
from contextlib import contextmanager


@contextmanager
def without_collecting():
    """No garbage is looked for inside, in the whole process; reference counts work as ever."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
