"""A strict stand-in for CuPy over NumPy, for what no test could see without a GPU.

It refuses arrays of the host where CuPy does, counts every copy over the bus, keeps a memory pool
with a limit and injected failures, and follows the order of work on streams: an operation that
reads what another stream may not have written yet, a pinned buffer that is reused before its copy
is done, and memory that is given back while a stream uses it are errors. Elementwise kernels are
evaluated from their C++ text, and cuBLAS calls from their pointers and leading dimensions.
"""

import contextlib
import ctypes
import re
import threading
import types
import weakref

import numpy as np
import scipy.linalg

_INT8, _INT32 = 3, 10
_TYPES = {0: np.float32, 1: np.float64, _INT8: np.int8, _INT32: np.int32}


class OutOfMemoryError(MemoryError):
    pass


class RaceError(AssertionError):
    pass


class Gpu:
    """What happened: copies as (direction, bytes), allocations, hazards, and what should fail."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.copies, self.hazards, self.calls = [], [], []
        self.pools, self.live = [], weakref.WeakValueDictionary()
        self.n_allocations, self.fail_at, self.fail_above = 0, (), np.inf
        self.host_clock = {}
        self.local = threading.local()
        self.pinned = []
        self.null = None
        self.lock = threading.RLock()

    def bytes(self, direction):
        return sum(n for way, n in self.copies if way == direction)

    def sizes(self, direction):
        return [n for way, n in self.copies if way == direction]


def merge(clock, other):
    for key, tick in other.items():
        clock[key] = max(clock.get(key, 0), tick)


def make(capacity=1 << 30):
    """The modules `cupy` and `cupyx`, whose `gpu` is the record of what they did."""
    gpu = Gpu(capacity)

    class Buffer:
        """A piece of device memory: who wrote it and who read it since, and the pool it is from."""

        def __init__(self, array):
            self.array = array
            self.pool = getattr(gpu.local, "pool", default_pool)
            self.stream = current()
            self.uses = {}
            self.written = (self.stream.id, 0)
            self.size = 0
            self.size = self.pool.take(-(-max(1, array.nbytes) // 512) * 512)
            gpu.live[id(self)] = self

        def read(self, stream):
            who, tick = self.written
            if stream.clock.get(who, 0) < tick:
                raise RaceError(f"stream {stream.id} reads what stream {who} may not have written")
            self.uses[stream.id] = stream.clock[stream.id]

        def write(self, stream):
            self.read(stream)
            for who, tick in self.uses.items():
                if stream.clock.get(who, 0) < tick:
                    raise RaceError(f"stream {stream.id} writes what stream {who} may still read")
            self.written, self.uses = (stream.id, stream.clock[stream.id]), {}

        def __del__(self):
            known = dict(self.stream.clock)
            merge(known, gpu.host_clock)
            for who, tick in [self.written, *self.uses.items()]:
                if known.get(who, 0) < tick:
                    gpu.hazards.append(
                        f"memory of stream {self.stream.id} in use by {who} is freed"
                    )
            self.pool.give(self.size)

    class MemoryPool:
        def __init__(self):
            self.used = self.total = self.peak = self.limit = 0
            gpu.pools.append(self)

        def malloc(self, size):
            raise NotImplementedError("only as an allocator")

        def take(self, size):
            with gpu.lock:
                gpu.n_allocations += 1
                grown = max(self.total, self.used + size)
                elsewhere = sum(pool.total for pool in gpu.pools) - self.total
                if (
                    gpu.n_allocations in gpu.fail_at
                    or size > gpu.fail_above
                    or (self.limit and grown > self.limit)
                    or grown + elsewhere > gpu.capacity
                ):
                    raise OutOfMemoryError(f"out of memory allocating {size} bytes")
                self.used, self.total = self.used + size, grown
                self.peak = max(self.peak, grown)
                return size

        def give(self, size):
            with gpu.lock:
                self.used -= size

        def set_limit(self, size):
            self.limit = size

        def used_bytes(self):
            return self.used

        def total_bytes(self):
            return self.total

        def free_bytes(self):
            return self.total - self.used

        def free_all_blocks(self):
            self.total = self.used

    default_pool = MemoryPool()

    class Stream:
        def __init__(self, non_blocking=False):
            self.id, self.clock, self.queue = object.__hash__(self), {}, []
            self.outer = []

        def tick(self):
            merge(self.clock, gpu.host_clock)
            self.clock[self.id] = self.clock.get(self.id, 0) + 1
            return self

        def __enter__(self):
            self.outer.append(current())
            gpu.local.stream = self
            return self

        def __exit__(self, *exception):
            gpu.local.stream = self.outer.pop()

        def wait_event(self, event):
            merge(self.clock, event.clock)

        def deliver(self, tick):
            due = [job for at, job in self.queue if at <= tick]
            self.queue = [(at, job) for at, job in self.queue if at > tick]
            for job in due:
                job()

        def synchronize(self):
            merge(gpu.host_clock, self.clock)
            self.deliver(np.inf)

    class Event:
        def __init__(self, disable_timing=False):
            self.clock, self.stream = {}, None

        def record(self, stream):
            self.clock, self.stream = dict(stream.clock), stream

        def synchronize(self):
            merge(gpu.host_clock, self.clock)
            if self.stream is not None:
                self.stream.deliver(self.clock.get(self.stream.id, 0))

    gpu.null = Stream()

    def current():
        return getattr(gpu.local, "stream", gpu.null)

    def is_pinned(array):
        start = array.ctypes.data
        return any(low <= start and start + array.nbytes <= high for low, high in gpu.pinned)

    def host(value):
        """A scalar, or the memory of an array of the device."""
        if isinstance(value, ndarray):
            return value._a
        if isinstance(value, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        return value

    def apply(function, *inputs, out=None, **options):
        stream = current().tick()
        for value in inputs:
            if isinstance(value, ndarray):
                value._buffer.read(stream)
        arguments = [host(value) for value in inputs]
        with np.errstate(all="ignore"):
            result = function(*arguments, **options)
        if out is not None:
            out._buffer.write(stream)
            np.copyto(out._a, result, casting="same_kind")
            return out
        fresh = ndarray(np.array(result))
        fresh._buffer.written = (stream.id, stream.clock[stream.id])
        return fresh

    class ndarray:
        __array_priority__ = 100

        def __init__(self, array, buffer=None):
            self._a = array
            self._buffer = buffer or Buffer(array)

        shape = property(lambda self: self._a.shape)
        dtype = property(lambda self: self._a.dtype)
        ndim = property(lambda self: self._a.ndim)
        size = property(lambda self: self._a.size)
        nbytes = property(lambda self: self._a.nbytes)
        itemsize = property(lambda self: self._a.itemsize)
        flags = property(lambda self: self._a.flags)
        T = property(lambda self: ndarray(self._a.T, self._buffer))
        data = property(lambda self: types.SimpleNamespace(ptr=self._a.ctypes.data))
        __cuda_array_interface__ = property(lambda self: self._a.__array_interface__)

        def __array__(self, *arguments, **options):
            raise TypeError("Implicit conversion to a NumPy array is not allowed. Use .get().")

        def __array_ufunc__(self, ufunc, method, *inputs, out=(None,), **options):
            if method != "__call__":
                return NotImplemented
            return apply(ufunc, *inputs, out=out[0], **options)

        def __len__(self):
            return len(self._a)

        def __getitem__(self, key):
            parts = key if isinstance(key, tuple) else (key,)
            if any(isinstance(part, ndarray) for part in parts):
                return apply(lambda a, *k: a[k], self, *parts)
            if any(isinstance(part, (np.ndarray, list)) for part in parts):
                raise TypeError("an index of the host")
            view = self._a[key]
            return ndarray(view if isinstance(view, np.ndarray) else np.array(view), self._buffer)

        def __setitem__(self, key, value):
            target = self._a[key]
            assert np.shares_memory(target, self._a) or not target.size
            apply(lambda v: v, value, out=ndarray(target, self._buffer))

        def get(self, stream=None, order="C", out=None, blocking=True):
            stream = (stream or current()).tick()
            self._buffer.read(stream)
            gpu.copies.append(("out", self.nbytes))
            value = self._a.copy()
            if blocking:
                stream.synchronize()
                return value
            assert is_pinned(out), "an asynchronous copy needs pinned memory"
            out.view(np.uint8)[...] = 0xFF

            def deliver():
                out[...] = value

            stream.queue.append((stream.clock[stream.id], deliver))
            return out

        def set(self, array, stream=None):
            assert isinstance(array, np.ndarray) and array.dtype == self.dtype
            assert array.shape == self.shape
            stream = (stream or current()).tick()
            self._buffer.write(stream)
            gpu.copies.append(("in", self.nbytes))
            self._a[...] = value = array.copy()
            if is_pinned(array):

                def check():
                    if array.tobytes() != value.tobytes():
                        raise RaceError("pinned memory was reused before its copy was done")

                stream.queue.append((stream.clock[stream.id], check))

        def __float__(self):
            return float(self.get())

        def __bool__(self):
            return bool(self.get())

        def item(self):
            return self.get().item()

        def view(self, dtype):
            return ndarray(self._a.view(dtype), self._buffer)

        def reshape(self, *shape):
            view = self._a.reshape(*shape)
            assert np.shares_memory(view, self._a) or not view.size
            return ndarray(view, self._buffer)

        def diagonal(self):
            return ndarray(self._a.diagonal(), self._buffer)

        def astype(self, dtype, copy=True):
            if not copy and self.dtype == dtype:
                return self
            return apply(lambda a: a.astype(dtype), self)

        def copy(self):
            return apply(np.copy, self)

        def fill(self, value):
            self[...] = value

        def sum(self, axis=None, dtype=None):
            return apply(np.sum, self, axis=axis, dtype=dtype)

        def mean(self, axis=None, dtype=None):
            return apply(np.mean, self, axis=axis, dtype=dtype)

        def max(self, axis=None):
            return apply(np.max, self, axis=axis)

    def binary(name, function):
        def forward(self, other):
            return apply(function, self, other)

        def reflected(self, other):
            return apply(function, other, self)

        def in_place(self, other):
            return apply(function, self, other, out=self)

        setattr(ndarray, f"__{name}__", forward)
        setattr(ndarray, f"__r{name}__", reflected)
        setattr(ndarray, f"__i{name}__", in_place)

    for name, function in {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "truediv": np.divide,
        "pow": np.power,
        "matmul": np.matmul,
        "xor": np.bitwise_xor,
        "or": np.bitwise_or,
        "and": np.bitwise_and,
    }.items():
        binary(name, function)
    for name in ("eq", "lt", "le", "gt", "ge"):
        setattr(ndarray, f"__{name}__", binary_comparison(name, apply))
    ndarray.__neg__ = lambda self: apply(np.negative, self)

    def asarray(value, dtype=None):
        if isinstance(value, ndarray):
            return value if dtype is None else value.astype(dtype, copy=False)
        array = np.array(value, dtype)
        made = ndarray(array)
        gpu.copies.append(("in", array.nbytes))
        made._buffer.write(current().tick())
        return made

    def new(maker):
        def make_array(shape, *arguments):
            made = ndarray(maker(shape, *arguments))
            made._buffer.write(current().tick())
            return made

        return make_array

    def ascontiguousarray(array, dtype=None):
        assert isinstance(array, ndarray), "only arrays of the device"
        if array._a.flags.c_contiguous and dtype in (None, array.dtype):
            return array
        return apply(lambda a: np.array(a, dtype, order="C"), array)

    def empty(shape, dtype=np.float64):
        array = np.empty(shape, dtype)
        array.view(np.uint8).reshape(-1)[...] = 0xFF  # what nobody wrote is not a number
        return array

    def fill_diagonal(array, value):
        ndarray(np.einsum("ii->i", array._a), array._buffer)[...] = value

    class ElementwiseKernel:
        """Statements of C++ that are Python once their types are taken off."""

        def __init__(self, inputs, outputs, operation, name):
            self.inputs = [part.split() for part in inputs.split(",")]
            self.outputs = [part.split() for part in outputs.split(",")]
            self.operation = operation
            assert re.fullmatch(r"[A-Za-z_]\w*", name)

        def __call__(self, *arguments):
            out = arguments[-1]
            kinds = {self.outputs[0][0]: out.dtype}
            for (kind, _), value in zip(self.inputs, arguments):
                if isinstance(value, ndarray):
                    assert kinds.setdefault(kind, value.dtype) == value.dtype, kind
            values = {}

            def evaluate(*given):
                names = {kind: caster(dtype) for kind, dtype in kinds.items()} | FUNCTIONS
                for (kind, name), value in zip(self.inputs, given):
                    names[name] = names[kind](value)
                for statement in filter(None, map(str.strip, self.operation.split(";"))):
                    target, text = re.fullmatch(r"(?:[A-Z] )?(\w+) = (.*)", statement).groups()
                    values[target] = names[target] = eval(text, {"__builtins__": {}}, names)
                return np.broadcast_to(values[self.outputs[0][1]], out.shape)

            return apply(evaluate, *arguments[:-1], out=out)

    class ReductionKernel:
        def __init__(self, inputs, output, mapped, reduced, after, identity, name):
            assert (reduced, after, identity) == ("a + b", "y = a", "0")
            self.mapped = mapped

        def __call__(self, x, out, axis):
            def evaluate(a):
                names = {"W": caster(out.dtype), "x": a}
                return eval(self.mapped, {"__builtins__": {}}, names).sum(axis=axis)

            return apply(evaluate, x, out=out)

    @contextlib.contextmanager
    def using_allocator(allocator):
        before = getattr(gpu.local, "pool", default_pool)
        gpu.local.pool = allocator.__self__
        try:
            yield
        finally:
            gpu.local.pool = before

    def alloc_pinned_memory(size):
        block = bytearray(size)
        start = ctypes.addressof(ctypes.c_char.from_buffer(block))
        gpu.pinned.append((start, start + size))
        return block

    xp, cupyx = types.ModuleType("cupy"), types.ModuleType("cupyx")
    xp.gpu, xp.ndarray, xp.asarray, xp.ascontiguousarray = gpu, ndarray, asarray, ascontiguousarray
    xp.empty, xp.zeros, xp.full = new(empty), new(np.zeros), new(np.full)
    for name in ("sqrt", "maximum", "floor", "where", "tril", "trace", "subtract"):
        setattr(xp, name, lambda *a, f=getattr(np, name), **k: apply(f, *a, **k))
    xp.fill_diagonal = fill_diagonal
    xp.ElementwiseKernel, xp.ReductionKernel = ElementwiseKernel, ReductionKernel
    quiet = types.SimpleNamespace(linalg="ignore")

    def cholesky(a):
        """NaN, not an error, where the matrix is not positive definite, unless errstate says so."""
        try:
            return apply(np.linalg.cholesky, a)
        except np.linalg.LinAlgError:
            if quiet.linalg == "raise":
                raise
            return apply(lambda a: np.full_like(a, np.nan), a)

    def eigh(a):
        values, vectors = np.linalg.eigh(host(a))
        return apply(lambda a: values, a), apply(lambda a: vectors, a)

    xp.linalg = types.SimpleNamespace(cholesky=cholesky, eigh=eigh)
    cublas = Cublas(gpu, current)
    xp.cuda = types.SimpleNamespace(
        Stream=Stream,
        Event=Event,
        MemoryPool=MemoryPool,
        Device=lambda: types.SimpleNamespace(id=0),
        get_current_stream=current,
        using_allocator=using_allocator,
        alloc_pinned_memory=alloc_pinned_memory,
        is_available=lambda: True,
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        device=types.SimpleNamespace(get_cublas_handle=lambda: 1),
        cublas=cublas,
        runtime=types.SimpleNamespace(
            memGetInfo=lambda: (capacity - sum(pool.total for pool in gpu.pools), capacity),
            getDevice=lambda: 0,
            getDeviceProperties=lambda _: {"name": b"stand-in", "major": 9, "minor": 0},
        ),
    )

    @contextlib.contextmanager
    def errstate(linalg):
        before, quiet.linalg = quiet.linalg, linalg
        try:
            yield
        finally:
            quiet.linalg = before

    def solve_triangular(a, b, trans=0, lower=False, unit_diagonal=False):
        return apply(
            lambda a, b: scipy.linalg.solve_triangular(
                a, b, trans, lower, unit_diagonal=unit_diagonal, check_finite=False
            ),
            a,
            b,
        )

    cupyx.errstate = errstate
    cupyx.scipy = types.ModuleType("cupyx.scipy")
    cupyx.scipy.linalg = types.ModuleType("cupyx.scipy.linalg")
    cupyx.scipy.linalg.solve_triangular = solve_triangular
    return xp, cupyx


def binary_comparison(name, apply):
    function = {
        "eq": np.equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }[name]
    return lambda self, other: apply(function, self, other)


def caster(dtype):
    """T(x) of C++: a conversion that rounds, or cuts off for integers."""
    return lambda value: np.asarray(value).astype(dtype)


FUNCTIONS = {"max": np.maximum, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "tanh": np.tanh}


class Cublas:
    """The two products, read column by column from raw memory as cuBLAS does."""

    CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_FILL_MODE_UPPER = 0, 1, 1
    CUBLAS_GEMM_DEFAULT = -1
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 77
    CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32I = 70, 72

    def __init__(self, gpu, current):
        self.gpu, self.current = gpu, current

    def matrix(self, pointer, kind, rows, columns, leading, *, written=False):
        stream = self.current()
        dtype = np.dtype(_TYPES[kind])
        count = leading * (columns - 1) + rows
        for buffer in list(self.gpu.live.values()):
            start = buffer.array.ctypes.data
            if start <= pointer < start + max(1, buffer.array.nbytes):
                assert pointer + count * dtype.itemsize <= start + buffer.array.nbytes
                (buffer.write if written else buffer.read)(stream)
                break
        else:
            raise AssertionError("a pointer to nothing")
        assert leading >= rows
        flat = np.frombuffer(
            (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer), dtype
        )
        step = dtype.itemsize
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), (step, leading * step))

    def gemmEx(
        self, handle, op_a, op_b, m, n, k, alpha, A, type_a, lda, B, type_b, ldb, beta, C, type_c,
        ldc, compute, algorithm,
    ):  # fmt: skip
        self.current().tick()
        self.gpu.calls.append((compute, m, n, k))
        if compute == self.CUBLAS_COMPUTE_32I:
            # The documented conditions of 8-bit products.
            assert (type_a, type_b, type_c) == (_INT8, _INT8, _INT32)
            assert lda % 4 == ldb % 4 == A % 4 == B % 4 == 0, "CUBLAS_STATUS_NOT_SUPPORTED"
        wanted = {70: 1, 72: _INT32}.get(compute, 0)
        assert type_c == wanted
        scalar = ctypes.POINTER(np.ctypeslib.as_ctypes_type(_TYPES[type_c]))
        assert ctypes.cast(alpha, scalar)[0] == 1 and ctypes.cast(beta, scalar)[0] == 0
        a = self.matrix(A, type_a, *((k, m) if op_a else (m, k)), lda)
        b = self.matrix(B, type_b, *((n, k) if op_b else (k, n)), ldb)
        c = self.matrix(C, type_c, m, n, ldc, written=True)
        a, b = (a.T if op_a else a), (b.T if op_b else b)
        if compute == self.CUBLAS_COMPUTE_32F_FAST_TF32:
            a, b = tf32(a), tf32(b)
        c[...] = a.astype(c.dtype) @ b.astype(c.dtype)

    def _syrk(self, kind, uplo, trans, n, k, alpha, A, lda, beta, C, ldc):
        self.current().tick()
        assert (uplo, trans) == (self.CUBLAS_FILL_MODE_UPPER, self.CUBLAS_OP_N)
        a = self.matrix(A, kind, n, k, lda)
        c = self.matrix(C, kind, n, n, ldc, written=True)
        upper = np.triu_indices(n)
        c[upper] = (a @ a.T)[upper]

    def ssyrk(self, handle, *rest):
        self._syrk(0, *rest)

    def dsyrk(self, handle, *rest):
        self._syrk(1, *rest)


def tf32(A):
    """float32 rounded to 10 bits."""
    bits = np.ascontiguousarray(A, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)
