"""Work of a thread of a tile on its registers, which Python code for Numba cannot express.

Intrinsics write LLVM with every index a constant, so the outputs of a thread are values that never
touch memory, rows of shared memory are read 16 bytes at a time, and the tensor cores are reached by
inline PTX. `tests/layer/cuda/kernels_in_numpy.py` has these functions for
Numba's simulator.

A lane has R × R outputs, in every eighth row and in two columns of every eight: in rows a + 8 i and
columns 2 b + 8 j and 2 b + 8 j + 1, for its a in 0..7 and b in 0..3, ordered row by row. A warp
owns 8R rows by 4R columns of a tile. This is the layout of mma.m16n8k32 in the PTX manual ("Matrix
Fragments for mma.m16n8k32"), for R = 8 in 4 × 4 products of 16 × 8 outputs. The scalar products use
it too.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gpurbf.runtime.jit.cuda_api import targetconfig

SLICE = 64  # bytes of a row that are in shared memory at a time
PITCH = 80  # bytes from row to row there: an odd number of 16s, so 8 rows fill all the banks
I32, I64 = ir.IntType(32), ir.IntType(64)
_EXCHANGES = "".join(
    f"shfl.sync.bfly.b32 other, $0, {step}, 31, 0xffffffff; max.s32 $0, $0, other; "
    for step in (16, 8, 4, 2, 1)
)


def element(context, builder, array_type, array, index):
    """Address of an element, by its number."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index], inbounds=True)


def offset(builder, pointer, count):
    return builder.gep(pointer, [ir.Constant(I64, count)], inbounds=True)


def shared_address(builder, pointer):
    """A pointer to shared memory as the 32 bits that instructions on it take."""
    there = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, 3))
    return builder.ptrtoint(there, I32)


def load16(builder, pointer):
    """The elements in 16 bytes of memory."""
    element = pointer.type.pointee
    count = 2 if isinstance(element, ir.DoubleType) else 4
    there = builder.bitcast(pointer, ir.VectorType(element, count).as_pointer())
    vector = builder.load(there, align=16)
    return [builder.extract_element(vector, ir.Constant(I32, q)) for q in range(count)]


def asm(builder, text, result, constraints, arguments, side_effect=False):
    """Inline PTX; ``.sync`` instructions are convergent: LLVM adds no branch around them."""
    function = ir.FunctionType(result, [a.type for a in arguments])
    code = ir.InlineAsm(function, text, constraints, side_effect)
    return builder.call(code, arguments, attrs=("convergent",) if ".sync" in text else ())


def libdevice(builder, name, x):
    """A function of one number in CUDA's library for devices."""
    kind = ir.FunctionType(x.type, [x.type])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [x])


@intrinsic
def aligned(typing_context, memory):
    """An array whose shared memory is declared with the alignment that 16-byte loads need."""

    def generate(context, builder, signature, args):
        for variable in builder.module.global_values:
            if getattr(variable, "addrspace", 0) == 3:
                variable.align = 16
        return args[0]

    return memory(memory), generate


@intrinsic
def address(typing_context, array, at):
    """Where element number `at` of an array in global memory is, in bytes."""

    def generate(context, builder, signature, args):
        pointer = element(context, builder, array, args[0], args[1])
        there = ir.PointerType(pointer.type.pointee, 1)
        return builder.ptrtoint(builder.addrspacecast(pointer, there), I64)

    return types.int64(array, at), generate


@intrinsic
def here(typing_context, x):
    """The 64-bit number x through an instruction of which the compiler knows nothing.

    What is computed from it cannot be moved up, before the loop over the inputs, where it would
    occupy registers that the outputs need.
    """

    def generate(context, builder, signature, args):
        letter = "d" if isinstance(args[0].type, ir.DoubleType) else "l"
        return asm(builder, "mov.b64 $0, $1;", args[0].type, f"={letter},{letter}", args, True)

    return x(x), generate


@intrinsic
def exponential(typing_context, rate, x):
    """exp(-rate x), 0 where that is below the smallest normal number.

    In float32 it is two instructions, with an error as large as that of the arguments' product.
    """

    def generate(context, builder, signature, args):
        if isinstance(args[1].type, ir.FloatType):
            factor = builder.fmul(args[0], ir.Constant(args[0].type, -1.4426950408889634))
            power = builder.fmul(factor, args[1])
            return asm(builder, "ex2.approx.ftz.f32 $0, $1;", power.type, "=f,f", [power])
        power = builder.fsub(ir.Constant(args[1].type, -0.0), builder.fmul(args[0], args[1]))
        value = libdevice(builder, "__nv_exp", power)
        tiny, zero = (ir.Constant(value.type, number) for number in (2.0**-1022, 0.0))
        return builder.select(builder.fcmp_ordered("<", value, tiny), zero, value)  # NaN stays

    return x(rate, x), generate


@intrinsic
def root(typing_context, x):
    """The square root of x >= 0; in float32 one instruction that errs by a unit in the last place.

    The square root of a number below the smallest normal one is 0 there.
    """

    def generate(context, builder, signature, args):
        if isinstance(args[0].type, ir.FloatType):
            return asm(builder, "sqrt.approx.ftz.f32 $0, $1;", args[0].type, "=f,f", args)
        return libdevice(builder, "__nv_sqrt", args[0])

    return x(x), generate


@intrinsic
def largest(typing_context, x):
    """The largest of a warp's 32 numbers x of 32 bits; all its threads are to come here."""

    def generate(context, builder, signature, args):
        text = f"{{ .reg .b32 other; mov.b32 $0, $1; {_EXCHANGES}}}"
        if targetconfig.ConfigStack().top().compute_capability >= (8, 0):
            text = "redux.sync.max.s32 $0, $1, 0xffffffff;"
        return asm(builder, text, I32, "=&r,r", args, True)

    return types.int32(types.int32), generate


def copies(asynchronous):
    """copy16, commit, wait_all, wait_but_one: bypassing registers (cc 8.0 and later) or not."""

    @intrinsic
    def copy16(typing_context, to, at, source, place):
        """Copy 16 bytes from an address in the global array `source` to shared memory."""

        def generate(context, builder, signature, args):
            target = element(context, builder, to, args[0], args[1])
            if asynchronous:
                text = "cp.async.cg.shared.global [$0], [$1], 16;"
                places = [shared_address(builder, target), args[3]]
                asm(builder, text, ir.VoidType(), "r,l,~{memory}", places, True)
            else:
                quad = ir.VectorType(I32, 4)
                value = builder.load(builder.inttoptr(args[3], ir.PointerType(quad, 1)), align=16)
                builder.store(value, builder.bitcast(target, quad.as_pointer()), align=16)

        return types.void(to, at, source, types.int64), generate

    def statement(text):
        @intrinsic
        def said(typing_context):
            def generate(context, builder, signature, args):
                if asynchronous:
                    asm(builder, f"cp.async.{text};", ir.VoidType(), "~{memory}", [], True)

            return types.void(), generate

        return said

    return copy16, *map(statement, ("commit_group", "wait_group 0", "wait_group 1"))


def _multiply(builder, acc, a, c):
    return builder.fma(a, c, acc)


def _manhattan(builder, acc, a, c):
    name = "__nv_fabs" if isinstance(a.type, ir.DoubleType) else "__nv_fabsf"
    return builder.fadd(acc, libdevice(builder, name, builder.fsub(a, c)))


def _four(text):
    """An instruction on four unsigned bytes in a word, summed into a third operand."""

    def operation(builder, acc, a, c):
        return asm(builder, f"{text} $0, $1, $2, $3;", I32, "=r,r,r,r", [a, c, acc])

    return operation


OPERATIONS = {
    "multiply": _multiply,
    "manhattan": _manhattan,
    "dp4a": _four("dp4a.u32.u32"),
    "sad": _four("vabsdiff4.u32.u32.u32.add"),
}


def _scalar_steps(product, R):
    """16 bytes of 8R rows against 16 bytes of 4R columns: R × R outputs a lane, row by row."""
    operation = OPERATIONS[product]

    def step(builder, acc, a, c, pitch):
        rows = [load16(builder, offset(builder, a, 8 * i * pitch)) for i in range(R)]
        for j in range(R):
            column = load16(builder, offset(builder, c, (8 * (j // 2) + j % 2) * pitch))
            for q, c_q in enumerate(column):
                for i in range(R):
                    acc[i * R + j] = operation(builder, acc[i * R + j], rows[i][q], c_q)

    return step


_MMA = (
    "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 "
    "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
)
# Four matrices of 8 rows × 16 bytes: a lane has a word of each, and gives the address of a row.
_FOUR = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
# Row and column offsets of a lane's four outputs from the first.
FRAGMENT_D = ((0, 0), (0, 1), (8, 0), (8, 1))


def _mma_steps():
    """32 bytes of 64 rows against 32 bytes of 32 columns on the tensor cores."""
    quad = ir.LiteralStructType([I32] * 4)

    def words(builder, pointer, row, pitch):
        address = shared_address(builder, offset(builder, pointer, row * pitch))
        D = asm(builder, _FOUR, quad, "=r,=r,=r,=r,r,~{memory}", [address], True)
        return [builder.extract_value(D, e) for e in range(4)]

    def step(builder, acc, a, c, pitch):
        A = [words(builder, a, 16 * i, pitch) for i in range(4)]
        twice = [words(builder, c, 16 * j, pitch) for j in range(2)]
        B = [both[e : e + 2] for both in twice for e in (0, 2)]
        constraints = ",".join(["=r"] * 4 + ["r"] * 10)
        for i in range(4):
            for j in range(4):
                places = [8 * (2 * i + row // 8) + 2 * j + column for row, column in FRAGMENT_D]
                operands = [*A[i], *B[j], *(acc[place] for place in places)]
                D = asm(builder, _MMA, quad, constraints, operands, True)
                for e, place in enumerate(places):
                    acc[place] = builder.extract_value(D, e)

    return step


def products(product, R):
    """zeros and step of a product, for R × R outputs a lane."""
    step_body = _mma_steps() if product == "mma" else _scalar_steps(product, R)

    @intrinsic
    def zeros(typing_context, memory):
        """The outputs before the first step, of the type of the products."""
        tile = types.UniTuple(memory.dtype, R * R)

        def generate(context, builder, signature, args):
            zero = ir.Constant(context.get_data_type(memory.dtype), 0)
            return context.make_tuple(builder, tile, [zero] * (R * R))

        return tile(memory), generate

    @intrinsic
    def step(typing_context, acc, memory, a, c, lane):
        """Add the products of the operands at elements a and c of shared memory."""

        def generate(context, builder, signature, args):
            values = [builder.extract_value(args[0], i) for i in range(R * R)]
            pointers = [element(context, builder, memory, args[1], args[i]) for i in (2, 3)]
            step_body(builder, values, *pointers, PITCH * 8 // memory.dtype.bitwidth)
            return context.make_tuple(builder, acc, values)

        return acc(acc, memory, a, c, lane), generate

    return zeros, step
