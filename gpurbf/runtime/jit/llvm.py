"""LLVM code for what Numba lacks: calls by address, attributes of the function.

Numba makes the value of an intrinsic of type void, so these return nothing.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def use_widest_vectors(typing_context):
    """Let loops of the calling function use 512-bit vectors where LLVM would prefer 256.

    This does not affect functions that it calls: Numba vectorizes their loops before it links them.
    """

    def generate(context, builder, signature, args):
        # llvmlite supports no string attributes, hence the plain set method.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')

    return types.void(), generate


@intrinsic
def without_refcount(typing_context, array):
    """The array without the owner of its memory, so that no references are counted.

    Numba counts references of slices too: two atomic operations each, which take half of a short
    loop's time. Use it only for arrays that live longer: a kernel's arguments, or its own arrays
    that `keep_alive` keeps.
    """

    def generate(context, builder, signature, args):
        own = context.make_array(array)(context, builder, args[0])
        own.meminfo = cgutils.get_null_value(own.meminfo.type)
        own.parent = cgutils.get_null_value(own.parent.type)
        return own._getvalue()

    return array(array), generate


@intrinsic
def keep_alive(typing_context, array):
    """Do nothing, but keep the array alive until here."""
    return types.void(array), lambda context, builder, signature, args: None


def _extreme(name):
    """An intrinsic: the larger or the smaller of two floats, for loops that LLVM vectorizes.

    Neither may be NaN, and 0 and -0 are the same.
    """

    @intrinsic
    def extreme(typing_context, a, b):
        def generate(context, builder, signature, args):
            kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()] * 2)
            function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.f64")
            return builder.call(function, args, fastmath=("nnan", "nsz"))

        return types.float64(types.float64, types.float64), generate

    return extreme


larger, smaller = _extreme("maxnum"), _extreme("minnum")


@intrinsic
def call_at(typing_context, function, *arguments):
    """Call a C function of words and float64 numbers by its address."""
    kinds = [types.float64 if a == types.float64 else types.intp for a in arguments]

    def generate(context, builder, signature, args):
        own = cgutils.unpack_tuple(builder, args[1])
        kind = ir.FunctionType(ir.VoidType(), [a.type for a in own])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), own)

    return types.void(types.intp, types.StarArgTuple(kinds)), generate


@intrinsic
def pointer(typing_context, address, like):
    """An address as a pointer to numbers of the dtype of `like`, a type or another pointer.

    Unlike an array, a pointer has no negative indices and no shape, which take long to compile.
    """
    kind = types.CPointer(like.dtype)

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.intp, like), generate


@intrinsic
def address(typing_context, of):
    """The address that a pointer holds, or that of an array's numbers."""

    def generate(context, builder, signature, args):
        if isinstance(of, types.Array):
            args = (context.make_array(of)(context, builder, args[0]).data,)
        return builder.ptrtoint(args[0], ir.IntType(64))

    return types.intp(of), generate


@intrinsic
def moved(typing_context, pointer, count):
    """The pointer moved by ``count`` elements."""

    def generate(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, types.intp), generate


@intrinsic
def number_of(typing_context, pointer, value):
    """The value converted to the dtype of the pointer's elements."""

    def generate(context, builder, signature, args):
        return context.cast(builder, args[1], value, pointer.dtype)

    return pointer.dtype(pointer, value), generate


@intrinsic
def bits_as(typing_context, number, kind):
    """The bits of a number as a number of another type; `view` takes longer to compile."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(kind.dtype))

    return kind.dtype(number, kind), generate


@intrinsic
def polynomial(typing_context, x, coefficients):
    """The polynomial in x of these float64 coefficients, the highest first, by Horner's rule."""

    def generate(context, builder, signature, args):
        factors = cgutils.unpack_tuple(builder, args[1])
        value, *others = (context.cast(builder, c, types.float64, x) for c in factors)
        for c in others:
            value = builder.fadd(builder.fmul(value, args[0]), c)
        return value

    return x(x, coefficients), generate


@intrinsic(prefer_literal=True)
def words(typing_context, address, shape):
    """The integers at an address: a tuple of ``shape`` of them, or a NamedTuple of that class."""
    if isinstance(shape, types.NamedTupleClass):
        record = shape.instance_class
        kind = types.NamedUniTuple(types.intp, len(record._fields), record)
    else:
        kind = types.UniTuple(types.intp, shape.literal_value)

    def generate(context, builder, signature, args):
        first = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        places = (builder.gep(first, [ir.IntType(64)(i)]) for i in range(kind.count))
        return context.make_tuple(builder, kind, [builder.load(place) for place in places])

    return kind(types.intp, shape), generate


@intrinsic
def clear_bytes(typing_context, address, count):
    """Write ``count`` zero bytes at an address."""

    def generate(context, builder, signature, args):
        place = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        cgutils.memset(builder, place, args[1], 0)

    return types.void(types.intp, types.intp), generate


@intrinsic
def copy_bytes(typing_context, target, source, count):
    """Copy bytes between addresses; they must not overlap."""

    def generate(context, builder, signature, args):
        to, of = (builder.inttoptr(address, ir.IntType(8).as_pointer()) for address in args[:2])
        cgutils.raw_memcpy(builder, to, of, args[2], 1)

    return types.void(*(types.intp,) * 3), generate


@intrinsic
def transpose4(typing_context, word, source, source_stride, target, target_stride):
    """Write 4 × 4 numbers of the dtype of `word` transposed: addresses, and bytes between rows.

    `word` is an array or a pointer.
    """

    def generate(context, builder, signature, args):
        number = context.get_data_type(word.dtype)
        row = ir.VectorType(number, 4)
        align = context.get_abi_sizeof(number)

        def place(address, stride, i):
            at = builder.add(address, builder.mul(stride, ir.Constant(stride.type, i)))
            return builder.inttoptr(at, row.as_pointer())

        def mixed(a, b, order):
            order = ir.Constant(ir.VectorType(ir.IntType(32), 4), order)
            return builder.shuffle_vector(a, b, order)

        _, source, source_stride, target, target_stride = args
        a, b, c, d = (builder.load(place(source, source_stride, i), align=align) for i in range(4))
        for half, order in enumerate(([0, 4, 1, 5], [2, 6, 3, 7])):
            ab, cd = mixed(a, b, order), mixed(c, d, order)
            for i, order in enumerate(([0, 1, 4, 5], [2, 3, 6, 7])):
                address = place(target, target_stride, 2 * half + i)
                builder.store(mixed(ab, cd, order), address, align=align)

    return types.void(word, *(types.intp,) * 4), generate


def prefetch(builder, address, locality):
    """Have the memory at an address brought into the caches; the address need not be valid.

    ``locality`` is LLVM's: 3 for all caches, 2 for those from the second level on.
    """
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    # Not to be written (0), and data (1).
    builder.call(fetch, [builder.inttoptr(address, byte), number(0), number(locality), number(1)])


@intrinsic
def widen16(typing_context, word, source, target, ahead):
    """Write 16 numbers of the dtype of `word` as float64, from an address to one of a cache line.

    The numbers `ahead` bytes further on are prefetched; that address need not be valid.
    """

    def generate(context, builder, signature, args):
        prefetch(builder, builder.add(args[1], args[3]), locality=3)
        number, wide = (
            ir.VectorType(kind, 16) for kind in (context.get_data_type(word.dtype), ir.DoubleType())
        )
        size = context.get_abi_sizeof(number.element)
        values = builder.load(builder.inttoptr(args[1], number.as_pointer()), align=size)
        if isinstance(number.element, ir.IntType):
            values = builder.sitofp(values, wide)
        elif number != wide:
            values = builder.fpext(values, wide)
        builder.store(values, builder.inttoptr(args[2], wide.as_pointer()), align=64)

    return types.void(word, types.intp, types.intp, types.intp), generate
