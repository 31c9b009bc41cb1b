"""The micro-kernels: a block of rows × centers, summed over all inputs in vector registers.

A kernel is a C function `(x, c, c_stride, steps, out, out_stride)` of addresses and bytes, with at
least one step. It keeps `rows × panels × 16` sums in registers. At every step it takes `group`
inputs of each row (one broadcast) and of each center (whole vectors), all read in the order in
which `packing` laid them:

    x    [steps][rows][group]            one panel of rows (or as the kind's strides say)
    c    [steps][16][group] per panel    `panels` panels of centers, c_stride bytes apart
    out  [rows][panels · 16]             int32, float32 or float64, rows out_stride bytes apart

A kernel of packed rows, `(x, places, c, c_stride, steps, out, begun)`, takes a list of the steps to
compute: `places` is its address, and it has the int32 byte offset from x of each step. Other steps
would add zero (see `packing.leave_out`). Its rows of `out` are BLOCK numbers apart, and have the
sums of `begun` steps already, which it goes on with. Kernels of integers take all steps at once.

Long float32 sums are made in runs, each summed in registers and then added to `out`. This reduces
the rounding error, since each addition rounds at the current size of the sum, which grows with n.

`KINDS` lists the differences; one builder writes the LLVM code of all kernels. Only lines that name
an instruction are specific to x86 or ARM; the generic kernels are plain vector arithmetic for any
CPU.
The blocks fill the registers of their CPU (32 of 512 bits, 16 of 256 bits, 32 of 128 bits on ARM)
without spilling any.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir

LANES = 16  # centers a panel
BLOCK = 256  # columns of a tile of activations


class Target(NamedTuple):
    """A CPU that a kernel is compiled for, if that has fewer features than the CPU at hand.

    If a kernel is forced on a better CPU, it then runs the same code as on the CPUs for which it is
    the best. Otherwise LLVM would replace vpmaddwd by an instruction of AVX-512.
    """

    cpu: str
    features: str


AVX2 = Target("haswell", "+avx2,+fma")
AVXVNNI = Target("haswell", "+avx2,+fma,+avxvnni")
DOTPROD = Target("generic", "+neon,+dotprod")
# On Neoverse V2 a load of two vectors is three operations, and two loads are two.
I8MM = Target("generic", "+neon,+dotprod,+i8mm,+slow-paired-128")


def compile_for(builder, target):
    """Mark the function at hand for the target of its kernel, if that has one."""
    if target is not None:
        attributes = (f'"target-cpu"="{target.cpu}"', f'"target-features"="{target.features}"')
        for attribute in (*attributes, "noinline"):  # inlined, it would get its caller's target
            set.add(builder.function.attributes, attribute)


def instruction(builder, name, result, *args):
    """Call an LLVM intrinsic."""
    kind = ir.FunctionType(result, [a.type for a in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args)


def _vpdpbusd(builder, total, x, c):
    # These operand types are the ones of old LLVM versions; newer ones convert them on reading.
    # Of the two factors the first is unsigned.
    return instruction(
        builder, f"llvm.x86.avx512.vpdpbusd.{32 * total.type.count}", total.type, total, c, x
    )


def _vpdpwssd(builder, total, x, c):
    return instruction(
        builder, f"llvm.x86.avx512.vpdpwssd.{32 * total.type.count}", total.type, total, x, c
    )


def _vpmaddwd(builder, total, x, c):
    words = ir.VectorType(ir.IntType(16), 2 * total.type.count)
    x, c = builder.bitcast(x, words), builder.bitcast(c, words)
    return builder.add(total, instruction(builder, "llvm.x86.avx2.pmadd.wd", total.type, x, c))


def _vpsadbw(builder, total, x, c):
    name = {8: "llvm.x86.avx512.psad.bw.512", 4: "llvm.x86.avx2.psad.bw"}[total.type.count]
    bytes_ = ir.VectorType(ir.IntType(8), 8 * total.type.count)
    x, c = builder.bitcast(x, bytes_), builder.bitcast(c, bytes_)
    return builder.add(total, instruction(builder, name, total.type, x, c))


def _multiply_int16(builder, total, x, c):
    return builder.add(total, builder.mul(builder.sext(x, total.type), builder.sext(c, total.type)))


def _multiply_pairs(builder, total, x, c):
    n = total.type.count
    words, wide = (ir.VectorType(kind, 2 * n) for kind in (_i16, _i32))
    x, c = (builder.sext(builder.bitcast(v, words), wide) for v in (x, c))
    products = builder.mul(x, c)
    # Compilers recognize this sum of neighbors, which is one instruction on many CPUs.
    halves = (ir.Constant(ir.VectorType(_i32, n), list(range(i, 2 * n, 2))) for i in (0, 1))
    pair = builder.add(*(builder.shuffle_vector(products, products, half) for half in halves))
    return builder.add(total, pair)


def _difference_uint8(builder, total, x, c):
    x, c = builder.zext(x, total.type), builder.zext(c, total.type)
    larger = builder.icmp_unsigned(">", x, c)
    return builder.add(total, builder.select(larger, builder.sub(x, c), builder.sub(c, x)))


def _multiply_float(builder, total, x, c):
    return _float_intrinsic(builder, "fmuladd", x, c, total)


def _difference_float(builder, total, x, c):
    return builder.fadd(total, _float_intrinsic(builder, "fabs", builder.fsub(x, c)))


def _float_intrinsic(builder, name, *args):
    """Call an LLVM intrinsic of vectors of floats."""
    vector = args[0].type
    suffix = f"v{vector.count}f{8 * byte_size(vector.element)}"
    return instruction(builder, f"llvm.{name}.{suffix}", vector, *args)


def _udot(builder, total, x, c):
    return _arm(builder, "udot", total, c, x)  # only the second factor may be a single lane


def _ummla(builder, total, x, c):
    return _arm(builder, "ummla", total, x, c)


def _arm(builder, name, total, a, b):
    """One of ARM's instructions that sum products of 16 bytes in 4 numbers."""
    a, b = (builder.bitcast(v, ir.VectorType(_i8, 16)) for v in (a, b))
    return instruction(builder, f"llvm.aarch64.neon.{name}.v4i32.v16i8", total.type, total, a, b)


def _uabd_udot(builder, total, x, c):
    bytes_ = ir.VectorType(_i8, 16)
    x, c = builder.bitcast(x, bytes_), builder.bitcast(c, bytes_)
    distance = instruction(builder, "llvm.aarch64.neon.uabd.v16i8", bytes_, x, c)
    return _arm(builder, "udot", total, distance, ir.Constant(bytes_, [1] * 16))


def _smlal_pairs(builder, total, x, c):
    n = total.type.count
    words = ir.VectorType(_i16, 2 * n)
    x, c = builder.bitcast(x, words), builder.bitcast(c, words)
    for i in (0, 1):
        half = ir.Constant(ir.VectorType(_i32, n), list(range(i, 2 * n, 2)))
        a, b = (builder.sext(builder.shuffle_vector(v, v, half), total.type) for v in (x, c))
        total = builder.add(total, builder.mul(a, b))
    return total


class Operation(NamedTuple):
    """One step of one sum: `combine(builder, total, x, c)`."""

    combine: object
    operand: ir.Type  # the `group` inputs of one sum, as one number
    total: ir.Type
    result: ir.Type
    group: int
    x: np.dtype  # of rows (codes minus 128 if it is int8); c: of centers
    c: np.dtype
    arithmetic: str  # its name in profiles and ceilings
    rows: int = 1  # in a vector of x; 1: the vector holds copies of one row
    word: ir.Type | None = None  # the type of lanes of x, if not `operand`
    c_group: int = 0  # inputs of a center that lie together, if not `group`

    @property
    def out(self):
        """The dtype of the sums."""
        return self.c if self.c.kind == "f" else np.dtype(np.int32)


_i8, _i16, _i32, _i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_f32, _f64 = ir.FloatType(), ir.DoubleType()
_u8, _s8, _s16, _single, _double = map(np.dtype, ("u1", "i1", "i2", "f4", "f8"))
_singles = (_f32, _f32, _f32, 1, _single, _single)
_doubles = (_f64, _f64, _f64, 1, _double, _double)
_widened = (_f32, _f64, _f64, 1, _single, _double)
PAIRS = "16-bit products"
PRODUCTS, DIFFERENCES = "8-bit products", "8-bit differences"
OPERATIONS = {
    "vpdpbusd": Operation(_vpdpbusd, _i32, _i32, _i32, 4, _s8, _u8, PRODUCTS),
    "vpmaddwd256": Operation(_vpmaddwd, _i32, _i32, _i32, 2, _s16, _s16, PRODUCTS),
    "vpdpwssd": Operation(_vpdpwssd, _i32, _i32, _i32, 2, _s16, _s16, PAIRS),
    "vpmaddwd_pairs": Operation(_vpmaddwd, _i32, _i32, _i32, 2, _s16, _s16, PAIRS),
    "multiply_pairs": Operation(_multiply_pairs, _i32, _i32, _i32, 2, _s16, _s16, PAIRS),
    "vpsadbw": Operation(_vpsadbw, _i64, _i64, _i32, 8, _u8, _u8, DIFFERENCES),
    "udot": Operation(_udot, _i32, _i32, _i32, 4, _u8, _u8, PRODUCTS),
    "ummla": Operation(_ummla, _i64, _i32, _i32, 8, _u8, _u8, PRODUCTS, rows=2),
    "uabd_udot": Operation(_uabd_udot, _i32, _i32, _i32, 4, _u8, _u8, DIFFERENCES),
    "smlal_pairs": Operation(_smlal_pairs, _i32, _i32, _i32, 2, _s16, _s16, PAIRS, word=_i16),
    "multiply_int16": Operation(_multiply_int16, _i16, _i32, _i32, 1, _s16, _s16, PRODUCTS),
    "multiply_float32": Operation(_multiply_float, *_singles, "float32"),
    "multiply_float64": Operation(_multiply_float, *_doubles, "float64"),
    "multiply_widened": Operation(_multiply_float, *_widened, "float64"),
    "difference_uint8": Operation(_difference_uint8, _i8, _i32, _i32, 1, _u8, _u8, DIFFERENCES),
    "difference_float32": Operation(_difference_float, *_singles, "float32 differences"),
    "difference_float64": Operation(_difference_float, *_doubles, "float64 differences"),
}


class Kind(NamedTuple):
    """The operation of a micro-kernel and the shape of its block of registers."""

    operation: Operation
    width: int  # sums a vector register
    rows: int
    panels: int
    row_stride: int = 0  # bytes in x from row to row and from step to step; 0: x is packed
    step_stride: int = 0
    target: Target | None = None  # None: the CPU at hand
    run: int = 0  # steps that are summed before they are added to `out`; 0: all of them
    by_lane: bool = False  # rows are side by side in x: they are loaded as vectors
    ld1x4: bool = False  # ARM: a panel of centers is one load, fewer operations than pairs

    @property
    def listed(self):
        """Whether the kernel takes a list of its steps."""
        return not self.row_stride


# Bytes of a vector register, and the target of kernels that are named by it.
VECTORS = {"avx512": 64, "avx2": 32, "generic": 16, "neon": 16}
TARGETS = {"avx2": AVX2, "neon": DOTPROD}
# Rows and panels of the blocks of floats, in the order of VECTORS.
_BLOCKS = {
    ("dot", 32): ((12, 2), (6, 1), (4, 1), (6, 1)),
    ("dot", 64): ((12, 1), (2, 1), (2, 1), (2, 1)),
    ("manhattan", 32): ((12, 2), (4, 1), (4, 1), (2, 1)),
    ("manhattan", 64): ((12, 1), (2, 1), (2, 1), (2, 1)),
    ("score", 32): ((12, 1), (6, 1), (4, 1), (6, 1)),
    ("score", 64): ((12, 1), (2, 1), (2, 1), (2, 1)),
    ("gram", 32): ((8, 2), (4, 1), (4, 1), (4, 1)),
    ("gram", 64): ((8, 1), (2, 1), (2, 1), (2, 1)),
}
# Of each task with floats: the operation, steps of a run of float32 sums (0: all), and numbers in x
# from row to row and from step to step (0: x is packed).
_OF_TASKS = {
    "dot": ("multiply", 128, 0, 0),
    "manhattan": ("difference", 128, 0, 0),
    "score": ("multiply", 64, BLOCK, 1),
    "gram": ("multiply", 0, 1, LANES),
}


def _of_floats(task, bits, vectors, rows, panels):
    """The kind of a task's kernel of float32 or float64."""
    operation, run, row_stride, step_stride = _OF_TASKS[task]
    size, arm = bits // 8, vectors == "neon"
    return Kind(
        OPERATIONS[f"{operation}_float{bits}"], VECTORS[vectors] // size, rows, panels,
        row_stride * size, step_stride * size, TARGETS.get(vectors), run if bits == 32 else 0,
        by_lane=arm and task in ("dot", "gram"), ld1x4=arm and bits == 32,
    )  # fmt: skip


# dot…        integer products of quantization codes, float32 and float64 products
# manhattan…  sums of absolute differences, likewise
# score…      products with 16 columns of W, whose x is a tile of activations (BLOCK columns wide)
# gram…       HᵀH: both operands are panels of 16 columns of H; gram16 takes pairs of 16-bit rows
KINDS = {
    "dot_avx512vnni": Kind(OPERATIONS["vpdpbusd"], 16, 12, 2),
    "dot_avxvnni": Kind(OPERATIONS["vpdpbusd"], 8, 6, 1, target=AVXVNNI),
    "dot_avx2": Kind(OPERATIONS["vpmaddwd256"], 8, 6, 1, target=AVX2),
    "dot_generic": Kind(OPERATIONS["multiply_int16"], 4, 4, 1),
    "dot_i8mm": Kind(OPERATIONS["ummla"], 2, 6, 1, target=I8MM),
    "dot_dotprod": Kind(OPERATIONS["udot"], 4, 6, 1, target=DOTPROD, by_lane=True, ld1x4=True),
    "manhattan_avx512": Kind(OPERATIONS["vpsadbw"], 8, 12, 1),
    "manhattan_avx2": Kind(OPERATIONS["vpsadbw"], 4, 2, 1, target=AVX2),
    "manhattan_generic": Kind(OPERATIONS["difference_uint8"], 16, 4, 1),
    "manhattan_neon": Kind(OPERATIONS["uabd_udot"], 4, 4, 1, target=DOTPROD),
    "gram16_avx512vnni": Kind(OPERATIONS["vpdpwssd"], 16, 8, 2, 4, 4 * LANES),
    "gram16_avxvnni": Kind(OPERATIONS["vpdpwssd"], 8, 4, 1, 4, 4 * LANES, target=AVXVNNI),
    "gram16_avx2": Kind(OPERATIONS["vpmaddwd_pairs"], 8, 4, 1, 4, 4 * LANES, target=AVX2),
    "gram16_generic": Kind(OPERATIONS["multiply_pairs"], 4, 4, 1, 4, 4 * LANES),
    "gram16_neon": Kind(
        OPERATIONS["smlal_pairs"], 4, 4, 1, 4, 4 * LANES, target=DOTPROD, by_lane=True
    ),
} | {
    f"{task}{bits}_{vectors}": _of_floats(task, bits, vectors, *block)
    for (task, bits), blocks in _BLOCKS.items()
    for vectors, block in zip(VECTORS, blocks)
}


def pointer_to(builder, address, offset, kind):
    """`address + offset` bytes as a pointer to `kind`."""
    raw = builder.inttoptr(address, _i8.as_pointer())
    return builder.bitcast(builder.gep(raw, [_i64(offset)]), kind.as_pointer())


def place_of(builder, x, places):
    """The address in x of the first of the listed steps."""
    place = builder.load(pointer_to(builder, places, 0, _i32), align=4)
    return builder.add(x, builder.sext(place, _i64))


def _broadcast(builder, number, width):
    """A vector of `width` copies of a number."""
    vector = ir.VectorType(number.type, width)
    undefined = ir.Constant(vector, ir.Undefined)
    single = builder.insert_element(undefined, number, _i32(0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_i32, width), None))


def loop(builder, first, body):
    """Write a loop over values, which are `first` at its beginning; return those at its end.

    ``body(*values)`` writes one pass. It returns whether another one follows, and its values.
    """
    start, block = builder.block, builder.append_basic_block(body.__name__)
    end = builder.append_basic_block(f"after_{body.__name__}")
    builder.branch(block)
    builder.position_at_end(block)
    phis = [builder.phi(value.type) for value in first]
    again, values = body(*phis)
    for phi, before, after in zip(phis, first, values):
        phi.add_incoming(before, start)
        phi.add_incoming(after, builder.block)
    builder.cbranch(again, block, end)
    builder.position_at_end(end)
    return values


def build(builder, kind, *arguments):
    """Write the loop over the steps and the store of the sums, once or for each run."""
    if kind.listed:
        x, places, c, c_stride, steps, out, begun = arguments
        out_stride = _i64(BLOCK * byte_size(kind.operation.result))
    else:
        x, c, c_stride, steps, out, out_stride = arguments
        places = begun = _i64(0)
    if not kind.run:
        before = _sums_before(builder, kind, out, out_stride, begun)
        sums, *_ = _sum(builder, kind, x, places, c, c_stride, steps, before)
        _store(builder, kind, sums, out, out_stride)
        return

    # The number of steps left of the run that is stored; the sums of other runs are added.
    stored = builder.select(builder.icmp_signed("==", begun, _i64(0)), steps, _i64(-1))

    def run(x, places, c, left):
        shorter = builder.icmp_signed("<", left, _i64(kind.run))
        steps_now = builder.select(shorter, left, _i64(kind.run))
        zeros = _zeros(kind)
        sums, *following = _sum(builder, kind, x, places, c, c_stride, steps_now, zeros)
        with builder.if_else(builder.icmp_signed("==", left, stored)) as (first, further):
            with first:
                _store(builder, kind, sums, out, out_stride)
            with further:
                _store(builder, kind, sums, out, out_stride, add=True)
        left = builder.sub(left, steps_now)
        return builder.icmp_signed(">", left, _i64(0)), [*following, left]

    loop(builder, [x, places, c, steps], run)


def _zeros(kind):
    """The sums of no step, row by row."""
    operation = kind.operation
    totals = ir.VectorType(operation.total, kind.width * operation.rows)
    n_sums = kind.rows // operation.rows * kind.panels * LANES // kind.width
    return [ir.Constant(totals, None)] * n_sums


def _sums_before(builder, kind, out, out_stride, begun):
    """The sums of floats in `out` if steps have begun, else zeros."""
    zeros = _zeros(kind)
    if not kind.listed or zeros[0].type.element not in (_f32, _f64):
        return zeros
    start, n = builder.block, len(zeros) // kind.rows
    with builder.if_then(builder.icmp_signed("!=", begun, _i64(0))):
        before = [
            builder.load(place, align=size)
            for row in range(kind.rows)
            for place, size in _row_of_out(builder, kind, out, out_stride, row, n)
        ]
        loaded = builder.block
    sums = [builder.phi(zero.type) for zero in zeros]
    for total, zero, value in zip(sums, zeros, before):
        total.add_incoming(zero, start)
        total.add_incoming(value, loaded)
    return sums


def _sum(builder, kind, x, places, c, c_stride, steps, before):
    """Write the loop over some steps, whose sums begin with those before.

    Returns the sums, and the addresses where the next steps begin: of x, places and c.
    """
    operation = kind.operation
    inputs = ir.VectorType(operation.operand, kind.width)
    n_rows, n_sums = kind.rows // operation.rows, kind.panels * LANES // kind.width

    def step(number, x, places, c, *sums):
        old = [sums[row * n_sums : (row + 1) * n_sums] for row in range(n_rows)]
        rows = place_of(builder, x, places) if kind.listed else x
        if operation.rows == 1:
            centers = []
            for panel in range(kind.panels):
                address = builder.add(c, builder.mul(c_stride, _i64(panel))) if panel else c
                centers += _vectors(builder, kind, address, inputs)
            new = [
                operation.combine(builder, total, row, center)
                for totals_now, row in zip(old, _rows(builder, kind, rows))
                for total, center in zip(totals_now, centers)
            ]
        else:  # the few vectors of rows stay; those of centers are loaded one by one
            vectors, new = [*_rows(builder, kind, rows)], [*sums]
            for i, center in enumerate(_vectors(builder, kind, c, inputs)):
                for r, row in enumerate(vectors):
                    new[r * n_sums + i] = operation.combine(builder, old[r][i], row, center)
        number = builder.add(number, _i64(1))
        if kind.listed:
            places = builder.add(places, _i64(4))
        else:
            x = builder.add(x, _i64(kind.step_stride))
        c = builder.add(c, _i64(LANES * byte_size(operation.operand)))
        return builder.icmp_signed("<", number, steps), [number, x, places, c, *new]

    _, x, places, c, *sums = loop(builder, [_i64(0), x, places, c, *before], step)
    lines = [sums[row * n_sums : (row + 1) * n_sums] for row in range(n_rows)]
    if operation.rows > 1:
        lines = [line for pair in lines for line in _lines(builder, pair)]
    return lines, x, places, c


def _vectors(builder, kind, address, inputs):
    """The vectors of a panel of centers at a step, one after the other."""
    size = byte_size(inputs.element)
    if kind.ld1x4:
        name = "llvm.aarch64.neon.ld1x4." + ("v4f32.p0" if inputs.element == _f32 else "v4i32.p0")
        pointer = pointer_to(builder, address, 0, inputs.element)
        loaded = instruction(builder, name, ir.LiteralStructType([inputs] * 4), pointer)
        yield from (builder.extract_value(loaded, i) for i in range(4))
        return
    for first in range(0, LANES, kind.width):
        pointer = pointer_to(builder, address, first * size, inputs)
        yield builder.load(pointer, align=kind.width * size)


def _rows(builder, kind, address):
    """The vectors of x at a step, one after the other: copies of a row's inputs, or some rows."""
    operation = kind.operation
    operand, size, back = operation.operand, byte_size(operation.operand), 0
    if kind.target == DOTPROD and kind.step_stride and (kind.ld1x4 or not kind.by_lane):
        # Rows are addressed backwards from the next step's address. Otherwise LLVM uses loads that
        # increment their address: a load that copies one number (LD1R), which occupies one of the
        # three units with which M1 multiplies, or a load of a vector, which is three operations on
        # Neoverse V2. (gram64 gains nothing on any CPU.)
        back = kind.step_stride
        address = builder.add(address, _i64(back))
    if operation.rows > 1:
        vector = ir.VectorType(operand, operation.rows)
        for row in range(0, kind.rows, operation.rows):
            yield builder.load(pointer_to(builder, address, row * size, vector), align=size)
    elif kind.by_lane:
        word = operation.word or operand
        words, most = size // byte_size(word), 16 // size
        for first in range(0, kind.rows, most):
            rows = min(most, kind.rows - first)
            vector = ir.VectorType(word, rows * words)
            x = builder.load(pointer_to(builder, address, first * size - back, vector), align=size)
            for row in range(rows):
                lanes = [row * words + i for i in range(words)] * kind.width
                yield builder.shuffle_vector(
                    x, x, ir.Constant(ir.VectorType(_i32, len(lanes)), lanes)
                )
    else:
        for row in range(kind.rows):
            place = row * (kind.row_stride or size) - back
            pointer = pointer_to(builder, address, place, operand)
            yield _broadcast(builder, builder.load(pointer, align=size), kind.width)


def _lines(builder, sums):
    """Two rows of sums, from vectors of the sums of 2 rows × 2 centers."""
    for half in ([0, 1, 4, 5], [2, 3, 6, 7]):
        order = ir.Constant(ir.VectorType(_i32, 4), half)
        yield [builder.shuffle_vector(a, b, order) for a, b in zip(sums[::2], sums[1::2])]


def _store(builder, kind, rows, out, out_stride, *, add=False):
    """Write the sums to `out`, or add them to its numbers."""
    for row, sums in enumerate(rows):
        line = _row_of_out(builder, kind, out, out_stride, row, len(sums))
        for total, (place, size) in zip(sums, line):
            if total.type != place.type.pointee:
                total = builder.trunc(total, place.type.pointee)
            if add:
                total = builder.fadd(builder.load(place, align=size), total)
            builder.store(total, place, align=size)


def _row_of_out(builder, kind, out, out_stride, row, n):
    """Pointers to the n vectors of a row of `out`, each with its alignment."""
    operation = kind.operation
    results = ir.VectorType(operation.result, kind.width * operation.rows)
    size = byte_size(operation.result)
    line = builder.add(out, builder.mul(out_stride, _i64(row)))
    for v in range(n):
        yield pointer_to(builder, line, v * results.count * size, results), size


def byte_size(kind):
    """Size of an LLVM number."""
    return {_f32: 4, _f64: 8}.get(kind) or kind.width // 8
