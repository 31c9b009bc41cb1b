"""Kernels kept on disk by Numba; no call fails because of a damaged file or a full disk."""

import ctypes
import functools
import hashlib
import re
from contextlib import suppress
from pathlib import Path

from numba import config, from_dtype, njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.registry import CPUDispatcher
from numba.core.runtime import rtsys

from gpurbf.runtime.errors import inform
from gpurbf.runtime.lazy import once, without_collecting

# The package, where it lies, and the forms of imports: `from a.b import c, d` and `import a`.
_PACKAGE, _ROOT = __name__.partition(".")[0], Path(__file__).parents[3]
_IMPORT = re.compile(r"^ *(?:from|import) ([\w.]+)(?: import (\([^)]*\)|.*))?$", re.MULTILINE)
_NAME = re.compile(r"\w+")
# Of all kernels: Numba need not look for expressions of arrays and of text, and they have none.
_PLAIN = {"no_rewrites": True}
# The options of `njit`, and no C wrapper: no kernel is passed to another as a function.
_OPTIONS = _PLAIN | {"nopython": True, "boundscheck": None, "no_cfunc_wrapper": True}


class Cache(FunctionCache):
    """A disk cache; files that cannot be read are compiled again and replaced."""

    said = False  # whether an error was printed, once in a process

    def __init__(self, py_func):
        super().__init__(py_func)
        # A kernel contains the functions that it calls, maybe in other files; Numba checks one.
        self._stamp = _digest(Path(py_func.__code__.co_filename))

    def _index_key(self, sig, codegen):
        # Each key has its own files. If two processes wrote to one index at the same time, they
        # would give the code of two signatures the same name, and load the wrong one.
        key = super()._index_key(sig, codegen)
        name = f"{self._impl.filename_base}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
        self._cache_file = IndexDataCacheFile(self._cache_path, name, self._stamp)
        return key

    def load_overload(self, sig, target_context):
        # Numba would prepare for compiling here, which takes longer than everything else in a
        # process that finds its kernels. Loaded code needs only the runtime for arrays' memory.
        rtsys.initialize(target_context)
        found = None
        try:
            found = self._load_overload(sig, target_context)
        except Exception:  # a damaged pickle may raise any error
            with suppress(OSError):
                Path(self._cache_file._index_path).unlink()  # `save_overload` would read it
        if found is None and config.DISABLE_JIT:
            raise RuntimeError(
                "NUMBA_DISABLE_JIT is set, and kernels of gpurbf must be compiled: start Python "
                "without it."
            )
        return found

    def save_overload(self, sig, data):
        try:
            super().save_overload(sig, data)
        except Exception as error:  # an index that may not be removed is read, damaged as it is
            if not Cache.said:
                Cache.said = True
                what = f"gpurbf cannot keep compiled kernels in {self.cache_path} ({error})"
                inform(f"{what}: the next process compiles them again.")


@functools.cache
def _digest(path):
    """A hash of a source file and of all files of the package that it imports, directly or not."""
    sources, new = {path}, {path}
    while new:
        new = {imported for source in new for imported in _source(source)[1]} - sources
        sources |= new
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + _source(source)[0])
    return digest.digest()


@functools.cache
def _source(path):
    """A file's content, and the files of the package or of its own folder that it imports.

    In ``from a import b``, b is a module or a name in a: the files of both are taken if they exist.
    """
    content, files = path.read_bytes(), []
    for module, names in _IMPORT.findall(content.decode()):
        # Beside an installed package are all others, which are not its files.
        root = _ROOT if module.split(".")[0] == _PACKAGE else path.parent
        for name in ("", *_NAME.findall(names)):
            file = root.joinpath(*module.split("."), name)
            files += file.with_suffix(".py"), file / "__init__.py"
    return content, [file for file in files if file.is_file()]


class JitKernel(CPUDispatcher):
    """A kernel that Python calls."""

    compile = without_collecting()(CPUDispatcher.compile)


def cached(**options):
    """`numba.njit` of a kernel that Python calls; it is kept on disk."""

    def decorate(function):
        kernel = JitKernel(function, targetoptions=_OPTIONS | options)
        kernel._cache = Cache(function)
        return kernel

    return decorate


@once
def compiled(function, dtypes, contract=False):
    """The C function of a Python function, kept alive and on disk; compiled at its first use.

    For each argument, ``dtypes`` has the dtype that it points to, None for a word, or float. Sums
    of products are contracted (FMA) if ``contract``. Python calls ``ctypes`` of it, with addresses
    as integers; its lock is free meanwhile.
    """
    kinds = {None: types.intp, float: types.float64}
    arguments = [kinds.get(d) or types.CPointer(from_dtype(d)) for d in dtypes]
    options = _PLAIN | {"error_model": "numpy", "fastmath": {"contract"} if contract else False}
    kernel = CFunc(function, (tuple(arguments), types.void), locals={}, options=options)
    kernel._cache = Cache(function)
    with without_collecting():
        kernel.compile()
    numbers = (ctypes.c_double if d is float else ctypes.c_ssize_t for d in dtypes)
    kernel.ctypes = ctypes.CFUNCTYPE(None, *numbers)(kernel.address)
    return kernel


def inner(**options):
    """`numba.njit` of a function that only kernels call, without a wrapper for Python."""
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_PLAIN, **options)
