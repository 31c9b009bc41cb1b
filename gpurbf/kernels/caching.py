"""Kernels kept on disk by Numba: a file that is damaged, or a disk that is full, ends no call."""

import sys

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature

_said = False


class Cache(FunctionCache):
    """What cannot be read is compiled anew, and takes the place of what was there."""

    def load_overload(self, sig, target_context):
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged pickle fails in every way
            return None

    def save_overload(self, sig, data):
        try:
            try:
                super().save_overload(sig, data)
            except OSError:
                raise
            except Exception:
                self.flush()  # the index is damaged: it begins anew
                super().save_overload(sig, data)
        except OSError as error:
            _say(f"gpurbf cannot keep compiled kernels in {self.cache_path} ({error})")


def _say(what):
    """Once in a process, on stderr."""
    global _said
    if not _said:
        _said = True
        print(f"{what}: the next process compiles them again.", file=sys.stderr, flush=True)


def cached(**options):
    """`numba.njit` of a kernel that is kept on disk."""

    def decorate(function):
        dispatcher = njit(**options)(function)
        dispatcher._cache = Cache(function)
        return dispatcher

    return decorate


class _KeptCFunc(CFunc):
    def enable_caching(self):
        self._cache = Cache(self._pyfunc)


def cached_cfunc(signature, **options):
    """`numba.cfunc` of a kernel that is kept on disk."""

    def decorate(function):
        made = _KeptCFunc(function, normalize_signature(signature), locals={}, options=options)
        made.enable_caching()
        made.compile()
        return made

    return decorate
