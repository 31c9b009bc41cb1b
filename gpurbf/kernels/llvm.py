"""What Numba cannot say in Python: calls by address, attributes of the function at hand."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def use_widest_vectors(typing_context):
    """Let loops of the calling function use 512-bit vectors where LLVM would prefer 256."""

    def generate(context, builder, signature, args):
        # llvmlite knows no string attributes, hence the plain set method.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def call_profile(typing_context, function, buffer, count, gamma, coef0, degree):
    """Call a compiled profile, `void (*)(T *, intp, double, double, intp)`, by its address."""

    def generate(context, builder, signature, args):
        size, real = ir.IntType(64), ir.DoubleType()
        kind = ir.FunctionType(ir.VoidType(), [size, size, real, real, size])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    integer, number = types.intp, types.float64
    return types.void(integer, integer, integer, number, number, integer), generate
