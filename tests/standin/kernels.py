"""Elementwise kernels from their C++ text, cuBLAS from pointers and leading dimensions."""

import ctypes
import re
import types

import numpy as np

_TYPES = {0: np.float32, 1: np.float64, 3: np.int8, 10: np.int32}
FUNCTIONS = {"max": np.fmax, "min": np.fmin}  # CUDA's return the number beside NaN
FUNCTIONS |= {name: getattr(np, name) for name in ("sqrt", "exp", "log", "tanh")}


def caster(dtype):
    """T(x) of C++: a conversion that rounds, or cuts off for integers."""
    return lambda value: np.asarray(value).astype(dtype)


def statements(text, names):
    """Run statements of C++ that are Python once the types of declarations are taken off."""
    for statement in filter(None, map(str.strip, text.split(";"))):
        target, expression = re.fullmatch(r"(?:[A-Z] )?(\w+) = (.*)", statement).groups()
        names[target] = eval(expression, {"__builtins__": {}}, names)
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


TYPES = {"signed char": "i1", "unsigned char": "u1", "int": "i4"}
TYPES |= {"long long": "i8", "float": "f4", "double": "f8"}


class RawKernel:
    """A kernel in C++: its types and parameters are read from the text, which it is held to.

    What a thread does with an element is evaluated from the text, the frame around it is NumPy's;
    the frames themselves are run by test_cupy_kernels.py.
    """

    def __init__(self, gpu, code, name):
        self.gpu, self.code = gpu, code
        self.run = getattr(self, name.removeprefix("gpurbf_"))
        named = {b: a for a, b in re.findall(r"typedef ([\w ]+) (\w);", code)}
        self.dtypes = {letter: np.dtype(TYPES[kind]) for letter, kind in named.items()}
        known = self.dtypes | {kind: np.dtype(code) for kind, code in TYPES.items()}
        (parameters,) = re.findall(rf"__global__ void {name}\(([^)]*)\)", code)
        words = re.compile(r"(?:const )?([\w ]+?)(\*?) (\w+)")
        split = (words.fullmatch(part.strip()).groups() for part in parameters.split(","))
        self.parameters = [(known[kind], bool(star), own) for kind, star, own in split]
        self.sizes = {key: int(n) for key, n in re.findall(r"#define (\w+) (\d+)", code)}

    def __call__(self, grid, block, arguments):
        assert all(1 <= size <= most for size, most in zip(grid, (2**31 - 1, 65_535, 65_535)))
        assert np.prod(block) <= 1024
        for (dtype, pointer, name), value in zip(self.parameters, arguments, strict=True):
            assert value.dtype == dtype, f"{name} is {value.dtype}, not {dtype}"
            assert pointer == hasattr(value, "__cuda_array_interface__"), name
            assert not pointer or value.flags.c_contiguous, f"{name}: a kernel sees an address only"
        self.gpu.launches += 1
        self.gpu.kernels.append(self.run.__name__)
        given = types.SimpleNamespace(grid=grid, block=block)
        for (_, pointer, name), value in zip(self.parameters, arguments):
            setattr(given, name, value._a if pointer else value)
        with np.errstate(all="ignore"):
            self.run(given)

    def rows(self, a):
        assert a.block[0] == 32 and a.grid[0] * a.block[1] >= a.padded
        assert a.x.shape == (a.N, a.n) and a.shift.shape == (a.n,) and a.terms.shape == (a.N,)
        moved = a.x.astype(self.dtypes["M"]) - a.shift.astype(self.dtypes["M"])
        values = np.zeros((a.padded, a.width), a.packed.dtype)
        values[: a.N, : a.n] = moved.astype(a.packed.dtype)
        wide = values[: a.N].astype(np.int64 if "long long U;" in self.code else np.float64)
        parts = re.findall(r"to\[.*?\] = (\w+);", self.code)
        rest, packed = 0, values
        if parts:
            named = {"high": (high := tf32(values)), "low": (low := tf32(values - high))}
            packed = np.hstack([named[name] for name in parts])
            rest = low[: a.N].astype(float) ** 2
            wide = high[: a.N].astype(float) + low[: a.N]
        a.packed[...] = packed
        a.terms[:] = (a.quadratic * (wide**2 - rest) + a.linear * wide).sum(axis=1) + a.constant

    def activations(self, a):
        (text,) = re.findall(r"T y; (.*) return y;", self.code)
        names = {key: caster(self.dtypes[key]) for key in "KT"} | FUNCTIONS
        for name in ("alpha", "factor", "gamma", "coef0", "tiny"):
            names[name] = getattr(a, name)
        assert a.products.shape == (a.N, a.pitch) and a.pitch >= a.m
        assert a.rows.shape == (a.N,) and a.columns.shape == (a.m,)
        names |= {"p": a.products[:, : a.m], "row": a.rows[:, None], "column": a.columns}
        return np.broadcast_to(statements(text, names)["y"], (a.N, a.m))

    def outputs(self, a):
        assert a.grid[0] * a.block[0] >= a.m and a.out.shape == (a.N, a.m)
        a.out[...] = self.activations(a)

    def scores(self, a):
        assert a.block == (32 * self.sizes["WARPS"],) and a.scores.shape == (a.N, a.k)
        assert a.grid[0] * self.sizes["R"] >= a.N and a.grid[1] * self.sizes["Q"] >= a.k
        assert a.weights.shape == (a.k, a.m)
        # In the kernel's order: of a thread, of a warp's lanes by halves, of the warps.
        terms, warps = self.activations(a)[:, None] * a.weights, self.sizes["WARPS"]
        terms = np.pad(terms, [(0, 0), (0, 0), (0, -a.m % (32 * warps))])
        sums = terms.reshape(a.N, a.k, -1, warps, 32).sum(axis=2).astype(np.float64)
        for step in (16, 8, 4, 2, 1):
            sums = sums[..., :step] + sums[..., step:]
        a.scores[...] = sums[..., 0].sum(axis=-1)


class Cublas:
    CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
    CUBLAS_GEMM_DEFAULT = -1
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 77
    CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32I = 70, 72

    def __init__(self, gpu):
        self.gpu = gpu

    def matrix(self, pointer, kind, rows, columns, leading):
        """The matrix, columns first, at an address that an array of the device covers."""
        dtype = np.dtype(_TYPES[kind])
        count = leading * (columns - 1) + rows
        end = pointer + count * dtype.itemsize
        # One step, unlike values(): other threads make and drop buffers meanwhile.
        live = [buffer.array for find in self.gpu.live.valuerefs() if (buffer := find())]
        starts = [(array.ctypes.data, array.nbytes) for array in live]
        assert any(start <= pointer and end <= start + size for start, size in starts)
        assert leading >= rows
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
        strides = dtype.itemsize, leading * dtype.itemsize
        flat = np.frombuffer(memory, dtype)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), strides)

    def gemmEx(
        self, handle, op_a, op_b, m, n, k, alpha, A, type_a, lda, B, type_b, ldb, beta, C, type_c,
        ldc, compute, algorithm,
    ):  # fmt: skip
        self.gpu.launches += 1
        self.gpu.calls.append((compute, m, n, k))
        if compute == self.CUBLAS_COMPUTE_32I:
            # The documented conditions of 8-bit products on tensor cores.
            sizes = (m, k, lda, ldb, ldc, A, B, C)
            assert not any(size % 4 for size in sizes), "CUBLAS_STATUS_NOT_SUPPORTED"
            assert (op_a, op_b) == (self.CUBLAS_OP_T, self.CUBLAS_OP_N)
        inputs, output = {72: (3, 10), 70: (1, 1)}.get(compute, (0, 0))
        assert (type_a, type_b, type_c) == (inputs, inputs, output)
        scalar = ctypes.POINTER(np.ctypeslib.as_ctypes_type(_TYPES[type_c]))
        assert ctypes.cast(alpha, scalar)[0] == 1 and ctypes.cast(beta, scalar)[0] == 0
        a = self.matrix(A, type_a, *((k, m) if op_a else (m, k)), lda)
        b = self.matrix(B, type_b, *((n, k) if op_b else (k, n)), ldb)
        c = self.matrix(C, type_c, m, n, ldc)
        a, b = (a.T if op_a else a), (b.T if op_b else b)
        if compute == self.CUBLAS_COMPUTE_32F_FAST_TF32:
            a, b = tf32(a), tf32(b)
        c[...] = a.astype(c.dtype) @ b.astype(c.dtype)


def tf32(A):
    """float32 rounded to 10 bits; NaN stays."""
    A = np.ascontiguousarray(A, np.float32)
    bits = (A.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
    return np.where(A == A, bits.view(np.float32), A)
