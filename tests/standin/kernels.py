"""Elementwise kernels from their C++ text, cuBLAS from pointers and leading dimensions."""

import ctypes
import re

import numpy as np

_TYPES = {0: np.float32, 1: np.float64, 3: np.int8, 10: np.int32}
FUNCTIONS = {"max": np.maximum, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "tanh": np.tanh}


def caster(dtype):
    """T(x) of C++: a conversion that rounds, or cuts off for integers."""
    return lambda value: np.asarray(value).astype(dtype)


def evaluate(expression, names):
    return eval(expression, {"__builtins__": {}}, names)


def statements(text, names):
    """Run statements of C++ that are Python once the types of declarations are taken off."""
    for statement in filter(None, map(str.strip, text.split(";"))):
        target, expression = re.fullmatch(r"(?:[A-Z] )?(\w+) = (.*)", statement).groups()
        names[target] = evaluate(expression, names)
    return names


class ElementwiseKernel:
    def __init__(self, apply, inputs, outputs, operation, name):
        self.apply, self.operation = apply, operation
        self.inputs = [part.split() for part in inputs.split(",")]
        ((self.out_kind, self.out),) = [part.split() for part in outputs.split(",")]
        assert re.fullmatch(r"[A-Za-z_]\w*", name)

    def __call__(self, *arguments):
        *inputs, out = arguments
        kinds = {self.out_kind: out.dtype}
        for (kind, _), value in zip(self.inputs, inputs, strict=True):
            if hasattr(value, "dtype") and value.ndim:
                assert kinds.setdefault(kind, value.dtype) == value.dtype, "Type is mismatched"

        def values(*given):
            names = {kind: caster(dtype) for kind, dtype in kinds.items()} | FUNCTIONS
            for (kind, name), value in zip(self.inputs, given, strict=True):
                names[name] = names[kind](value)
            return np.broadcast_to(statements(self.operation, names)[self.out], out.shape)

        return self.apply(values, *inputs, out=out)


class ReductionKernel:
    def __init__(self, apply, inputs, output, mapped, reduced, after, identity, name):
        assert (inputs, output) == ("T x", "W y")
        assert (reduced, after, identity) == ("a + b", "y = a", "0")
        self.apply, self.mapped = apply, mapped

    def __call__(self, x, out, axis):
        def values(x):
            return evaluate(self.mapped, {"W": caster(out.dtype), "x": x}).sum(axis=axis)

        return self.apply(values, x, out=out)


class Cublas:
    CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_FILL_MODE_UPPER = 0, 1, 1
    CUBLAS_GEMM_DEFAULT = -1
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 77
    CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32I = 70, 72

    def __init__(self, gpu):
        self.gpu = gpu

    def matrix(self, pointer, kind, rows, columns, leading, *, written=False):
        """The matrix, columns first, at an address that an array of the device covers."""
        dtype = np.dtype(_TYPES[kind])
        count = leading * (columns - 1) + rows
        # One step, unlike values(): other threads make and drop buffers meanwhile.
        for buffer in filter(None, (find() for find in self.gpu.live.valuerefs())):
            start = buffer.array.ctypes.data
            if start <= pointer < start + buffer.array.nbytes:
                end = pointer + count * dtype.itemsize
                assert end <= start + buffer.array.nbytes
                (buffer.write if written else buffer.read)(self.gpu.current(), pointer, end)
                break
        else:
            raise AssertionError("a pointer to nothing")
        assert leading >= rows
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
        strides = dtype.itemsize, leading * dtype.itemsize
        flat = np.frombuffer(memory, dtype)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), strides)

    def gemmEx(
        self, handle, op_a, op_b, m, n, k, alpha, A, type_a, lda, B, type_b, ldb, beta, C, type_c,
        ldc, compute, algorithm,
    ):  # fmt: skip
        self.gpu.current().tick()
        self.gpu.calls.append((compute, m, n, k))
        if compute == self.CUBLAS_COMPUTE_32I:
            # The documented conditions of 8-bit products.
            assert lda % 4 == ldb % 4 == A % 4 == B % 4 == 0, "CUBLAS_STATUS_NOT_SUPPORTED"
        inputs, output = {72: (3, 10), 70: (1, 1)}.get(compute, (0, 0))
        assert (type_a, type_b, type_c) == (inputs, inputs, output)
        scalar = ctypes.POINTER(np.ctypeslib.as_ctypes_type(_TYPES[type_c]))
        assert ctypes.cast(alpha, scalar)[0] == 1 and ctypes.cast(beta, scalar)[0] == 0
        a = self.matrix(A, type_a, *((k, m) if op_a else (m, k)), lda)
        b = self.matrix(B, type_b, *((n, k) if op_b else (k, n)), ldb)
        c = self.matrix(C, type_c, m, n, ldc, written=True)
        a, b = (a.T if op_a else a), (b.T if op_b else b)
        if compute == self.CUBLAS_COMPUTE_32F_FAST_TF32:
            a, b = tf32(a), tf32(b)
        c[...] = a.astype(c.dtype) @ b.astype(c.dtype)

    def syrk(self, kind, uplo, trans, n, k, alpha, A, lda, beta, C, ldc):
        self.gpu.current().tick()
        assert (uplo, trans) == (self.CUBLAS_FILL_MODE_UPPER, self.CUBLAS_OP_N)
        a = self.matrix(A, kind, n, k, lda)
        c = self.matrix(C, kind, n, n, ldc, written=True)
        upper = np.triu_indices(n)
        c[upper] = (a @ a.T)[upper]

    def ssyrk(self, handle, *rest):
        self.syrk(0, *rest)

    def dsyrk(self, handle, *rest):
        self.syrk(1, *rest)


def tf32(A):
    """float32 rounded to 10 bits."""
    bits = np.ascontiguousarray(A, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)
