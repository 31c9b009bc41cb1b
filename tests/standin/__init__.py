"""A strict stand-in for CuPy over NumPy, for what no test could see without a GPU.

It refuses arrays of the host where CuPy does, counts launches, waits and every copy over the bus,
and keeps a memory pool with a limit and injected failures. Elementwise kernels are evaluated from
their C++ text, and cuBLAS calls from their pointers and leading dimensions.

    machine.py  memory, counts     kernels.py  what computes     here  arrays, modules

What it imitates, and where CuPy 14 has it. Where it does otherwise than CuPy it is stricter; a
looser place is a defect.

    no conversion to NumPy, no NumPy operands, `set`, `get`       cupy/_core/core.pyx
    ElementwiseKernel: one type a letter, "Type is mismatched"    cupy/_core/_kernel.pyx
    RawKernel: addresses, and scalars as they are                 cupy/_core/raw.pyx
    pool: blocks of 512 bytes, a limit, `free_all_blocks`         cupy/cuda/memory.pyx
    `linalg.cholesky`: rubbish unless `errstate(linalg="raise")`  cupy/linalg/_decomposition.py
    `cublas.syrk`: one triangle of `out`                          cupy/cublas.py
    cuBLAS: arguments by pointer, columns first, rules of 8 bits  cupy_backends/cuda/libs/cublas.pyx
    device: its number and properties, `memGetInfo`               cupy_backends/cuda/api/runtime.pyx
"""

import contextlib
import gc
import operator
import sys
import types
from functools import partial, partialmethod
from importlib.machinery import ModuleSpec
from unittest.mock import patch

import numpy as np
import pytest
import scipy.linalg

from gpurbf import BackendUnavailable
from gpurbf.layer import backends
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.cuda import check, device
from gpurbf.runtime.stages import FENCES
from standin.kernels import Cublas, ElementwiseKernel, RawKernel
from standin.machine import Buffer, Event, Gpu, MemoryPool, OutOfMemoryError

ATTRIBUTES = ("shape", "dtype", "ndim", "size", "nbytes", "flags")
REDUCTIONS = ("sum", "mean", "min", "max", "argmax", "any", "all")
FUNCTIONS = ("exp", "sqrt", "maximum", "trace")


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of the device; `gpu` is set by `make` on a subclass of its own."""

    gpu: Gpu
    __array_priority__ = 100

    def __init__(self, array, buffer=None):
        self._a = array
        self._buffer = buffer or Buffer(self.gpu, array)

    T = property(lambda self: self._view(self._a.T))
    data = property(lambda self: types.SimpleNamespace(ptr=self._a.ctypes.data))
    __cuda_array_interface__ = property(lambda self: self._a.__array_interface__)

    def _view(self, array):
        return type(self)(array, self._buffer)

    def __array__(self, *arguments, **options):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Use .get().")

    def __array_ufunc__(self, ufunc, method, *inputs, out=(None,), **options):
        assert method == "__call__"
        return self._apply(ufunc, *inputs, out=out[0], **options)

    @classmethod
    def _apply(cls, function, *inputs, out=None, **options):
        """An operation, whose result goes to a new array or to ``out``."""
        cls.gpu.launches += 1
        if any(isinstance(value, np.ndarray) for value in inputs):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        with np.errstate(all="ignore"):
            values = (value._a if isinstance(value, ndarray) else value for value in inputs)
            result = function(*values, **options)
        out = cls(np.empty_like(result)) if out is None else out
        np.copyto(out._a, result, casting="same_kind")
        return out

    def __len__(self):
        return len(self._a)

    def __getitem__(self, key):
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(part, ndarray) for part in parts):
            return self._apply(lambda a, *k: a[k], self, *parts)
        if any(isinstance(part, (np.ndarray, list)) for part in parts):
            raise TypeError("an index of the host")
        return self._view(self._a[(*parts, ...)])  # never a scalar

    def __setitem__(self, key, value):
        if isinstance(key, ndarray):
            self.gpu.launches += 1
            self._a[key._a] = value._a if isinstance(value, ndarray) else value
            return
        if isinstance(key, (np.ndarray, list)):
            raise TypeError("an index of the host")
        target = self._a[key]
        assert np.shares_memory(target, self._a) or not target.size
        self._apply(lambda v: v, value, out=self._view(target))

    def get(self, stream=None, order="C", out=None, blocking=True):
        self.gpu.copies.append(("out", self.nbytes))
        if blocking:
            self.gpu.synchronize()
        if out is None:
            return self._a.copy()
        assert out.flags.c_contiguous and (out.shape, out.dtype) == (self.shape, self.dtype)
        out[...] = self._a
        return out

    def set(self, array, stream=None):
        assert isinstance(array, np.ndarray) and array.dtype == self.dtype
        assert array.shape == self.shape and array.flags.c_contiguous
        self.gpu.copies.append(("in", self.nbytes))
        self._a[...] = array

    def __float__(self):
        return float(self.get())

    def __bool__(self):
        return bool(self.get())

    def reshape(self, *shape):
        view = self._a.reshape(*shape)
        assert np.shares_memory(view, self._a) or not view.size
        return self._view(view)

    def astype(self, dtype, copy=True):
        if not copy and self.dtype == dtype:
            return self
        return self._apply(lambda a: a.astype(dtype), self)

    def copy(self):
        return self._apply(np.copy, self)

    def fill(self, value):
        self[...] = value

    def view(self, dtype):
        return self._view(self._a.view(dtype))

    def diagonal(self):
        return self._view(self._a.diagonal())

    def _applied(self, function, *given, **options):
        return self._apply(function, self, *given, **options)


for _name in ATTRIBUTES:
    setattr(ndarray, _name, property(operator.attrgetter(f"_a.{_name}")))
for _name in REDUCTIONS:
    setattr(ndarray, _name, partialmethod(ndarray._applied, getattr(np, _name)))


def make(capacity=1 << 30):
    """The modules of a machine with so much memory, by name; `gpu` of "cupy" is its record."""
    gpu = Gpu(capacity)
    array = type("ndarray", (ndarray,), {"gpu": gpu, "__hash__": None})
    apply = array._apply

    def asarray(value, dtype=None, order=None):
        if isinstance(value, ndarray):
            value = value if dtype is None else value.astype(dtype, copy=False)
            return value if order is None else ascontiguousarray(value)
        if hasattr(value, "__cuda_array_interface__"):  # another library's, in place
            return asarray(value.there, dtype)
        made = array(np.array(value, dtype, order="C"))
        gpu.copies.append(("in", made.nbytes))
        return made

    def ascontiguousarray(value, dtype=None):
        assert isinstance(value, ndarray), "only arrays of the device"
        if value._a.flags.c_contiguous and dtype in (None, value.dtype):
            return value
        return apply(lambda a: np.array(a, dtype, order="C"), value)

    def empty(shape, dtype=np.float64):
        made = array(np.empty(shape, dtype))
        made._a.view(np.uint8)[...] = 0xFF  # what nobody wrote is not a number
        return made

    def full(shape, value, dtype=np.float64):
        made = array(np.empty(shape, dtype))
        made[...] = value
        return made

    def fill_diagonal(a, value):
        a._view(np.einsum("ii->i", a._a))[...] = value

    def concatenate(arrays, axis=0):
        return apply(lambda *parts: np.concatenate(parts, axis), *arrays)

    linalg_errors = types.SimpleNamespace(mode="ignore")

    def errstate(linalg):
        return patch.object(linalg_errors, "mode", linalg)

    def cholesky(a):
        """Rubbish for a matrix that has no factor; an error only if errstate says so."""
        try:
            return apply(np.linalg.cholesky, a)
        except np.linalg.LinAlgError:
            if linalg_errors.mode == "raise":
                raise
            return apply(lambda a: np.full_like(a, np.nan), a)

    def eigh(a):
        values, vectors = np.linalg.eigh(a._a)
        gpu.launches -= 1  # one call gives both
        return apply(lambda a: values, a), apply(lambda a: vectors, a)

    def syrk(trans, a, out, alpha=1.0, beta=0.0, lower=False):
        """The lower triangle of out = aᵀa + beta out; the other one is left as it is."""
        assert trans == "T" and lower and alpha == 1 and a.flags.c_contiguous
        assert out.dtype == a.dtype and out.shape == (a.shape[1],) * 2
        lower = np.tri(len(out), dtype=bool)
        return apply(lambda a, c: np.where(lower, a.T @ a + beta * c, c), a, out, out=out)

    def solve_triangular(a, b, trans=0, lower=False):
        options = {"trans": trans, "lower": lower, "check_finite": False}
        return apply(partial(scipy.linalg.solve_triangular, **options), a, b)

    def module(name, **members):
        made = types.ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)  # `find_spec` finds it
        made.__dict__.update(members)
        return made

    cuda = types.SimpleNamespace(
        Event=Event,
        MemoryPool=partial(MemoryPool, gpu),
        Device=lambda: types.SimpleNamespace(synchronize=gpu.synchronize),
        get_elapsed_time=lambda start, stop: 1e3 * (stop.recorded - start.recorded),
        get_current_stream=lambda: gpu.null,
        using_allocator=gpu.using_allocator,
        alloc_pinned_memory=bytearray,
        is_available=lambda: True,
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        device=types.SimpleNamespace(get_cublas_handle=lambda: 1),
        cublas=Cublas(gpu),
        runtime=types.SimpleNamespace(
            memGetInfo=gpu.memory,
            getDevice=lambda: gpu.device,
            getDeviceProperties=gpu.properties,
        ),
    )
    cupy = module(
        "cupy",
        gpu=gpu,
        cuda=cuda,
        ndarray=array,
        asarray=asarray,
        ascontiguousarray=ascontiguousarray,
        empty=empty,
        full=full,
        zeros=lambda shape, dtype=np.float64: full(shape, 0, dtype),
        fill_diagonal=fill_diagonal,
        concatenate=concatenate,
        linalg=types.SimpleNamespace(cholesky=cholesky, eigh=eigh),
        ElementwiseKernel=partial(ElementwiseKernel, apply),
        RawKernel=partial(RawKernel, gpu),
        **{name: partial(apply, getattr(np, name)) for name in FUNCTIONS},
    )
    # As in CuPy, not an attribute of the package until it is imported.
    cublas = module("cupy.cublas", syrk=syrk)
    linalg = module("cupyx.scipy.linalg", solve_triangular=solve_triangular)
    scipy_of_cupy = module("cupyx.scipy", linalg=linalg)
    cupyx = module("cupyx", errstate=errstate, scipy=scipy_of_cupy)
    return {each.__name__: each for each in (cupy, cublas, cupyx, scipy_of_cupy, linalg)}


def _no_kernels():
    raise BackendUnavailable("the stand-in for CuPy has no memory for Numba's kernels")


GAUSSIAN = Activation("euclidean", "gaussian", 0.02)


# What its check would find; its rates let `auto` take it from 107 centers on.
RIGHT = check.Verdict("", "", "", 0, {"device": 1e13, "host": 6e11, "copy": 1.2e10})


@contextlib.contextmanager
def installed(checked=False):
    """The stand-in in place of CuPy; nothing may be left in its pools at the end.

    It is not checked at its first use unless that is what a test is about.
    """
    modules = make()
    gpu = modules["cupy"].gpu
    with pytest.MonkeyPatch.context() as place:
        for name, module in modules.items():
            place.setitem(sys.modules, name, module)
        # Numba's kernels would be given addresses of the host where there is a GPU.
        place.setitem(backends.LOADERS, "numba-cuda", _no_kernels)
        if not checked:
            place.setattr(check, "require", lambda backend: None)
            place.setattr(check, "trusted", lambda name: RIGHT)
        backends._attempt.cache_clear()
        FENCES.clear()  # of a real device too: `memory_of`, whose cache ends below, adds it again
        try:
            yield modules["cupy"]
        finally:
            FENCES.clear()
            backends._attempt.cache_clear()
            device.memory_of.cache_clear()
    if any(pool.used for pool in gpu.pools):
        gc.collect()  # what only a cycle holds
    assert [pool.used for pool in gpu.pools] == [0] * len(gpu.pools)
