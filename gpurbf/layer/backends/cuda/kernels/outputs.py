"""Epilogue of a CUDA tile: a thread's sums become activations, which are stored or multiplied by W.

Activations stay in registers. If H is stored, it is written from there: two stores of a warp are
eight rows of 32 bytes or more. For H @ W a thread adds up its own columns times their weights, and
only these sums, one per row and column of W, go to shared memory.

These are intrinsics, as in `registers.py`, with the same layout: outputs in every eighth row and in
two columns of every eight. `tests/layer/cuda/kernels_in_numpy.py` has these functions for
Numba's simulator.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpurbf.layer.backends.cuda.kernels.registers import I32, I64, element, load16, offset


def column_of(j):
    """Offset from a lane's first column to its column j."""
    return 8 * (j // 2) + j % 2


@intrinsic
def added(typing_context, total, array, at):
    """total, a float64, + the sum of 16 bytes of an array, from an element on."""

    def generate(context, builder, signature, args):
        value = args[0]
        for summand in load16(builder, element(context, builder, array, args[1], args[2])):
            if isinstance(summand.type, ir.FloatType):
                summand = builder.fpext(summand, value.type)
            value = builder.fadd(value, summand)
        return value

    return total(total, array, at), generate


def functions(R, width):
    """at_rows, at_columns, activated, within, stored, weighted, spread (to rows of ``width``)."""
    grid = [(i, j) for i in range(R) for j in range(R)]

    @intrinsic
    def at_rows(typing_context, array, at):
        """The elements of a lane's rows, the first of which is number `at`."""

        def generate(context, builder, signature, args):
            first = element(context, builder, array, args[0], args[1])
            values = [builder.load(offset(builder, first, 8 * i)) for i in range(R)]
            return context.make_tuple(builder, signature.return_type, values)

        return types.UniTuple(array.dtype, R)(array, at), generate

    @intrinsic
    def at_columns(typing_context, array, at, left):
        """Terms of a lane's columns, from `at` on; beyond the `left` that exist, the last one."""

        def generate(context, builder, signature, args):
            first = element(context, builder, array, args[0], args[1])
            last, values = builder.sub(args[2], ir.Constant(I32, 1)), []
            for j in range(R):
                column = ir.Constant(I32, column_of(j))
                inside = builder.icmp_signed("<", column, last)
                place = builder.sext(builder.select(inside, column, last), I64)
                values.append(builder.load(builder.gep(first, [place], inbounds=True)))
            return context.make_tuple(builder, signature.return_type, values)

        return types.UniTuple(array.dtype, R)(array, at, types.int32), generate

    @intrinsic
    def activated(typing_context, acc, row_terms, column_terms, function, numbers):
        """function(output, term of its row, term of its column, numbers) of each output."""
        kinds = acc.dtype, row_terms.dtype, column_terms.dtype, numbers
        signature = function.get_call_type(typing_context, kinds, {})

        def generate(context, builder, own, args):
            call = context.get_function(function, signature)
            values = []
            for number, (i, j) in enumerate(grid):
                operands = [builder.extract_value(*one) for one in zip(args[:3], (number, i, j))]
                values.append(call(builder, [*operands, args[4]]))
            return context.make_tuple(builder, own.return_type, values)

        result = types.UniTuple(signature.return_type, len(grid))
        return result(acc, row_terms, column_terms, function, numbers), generate

    @intrinsic
    def within(typing_context, values, left):
        """The values, with zeros beyond the `left` columns that exist from the first on."""

        def generate(context, builder, signature, args):
            kept = []
            for number, (_, j) in enumerate(grid):
                value = builder.extract_value(args[0], number)
                inside = builder.icmp_signed(">", args[1], ir.Constant(I32, column_of(j)))
                kept.append(builder.select(inside, value, ir.Constant(value.type, 0)))
            return context.make_tuple(builder, values, kept)

        return values(values, types.int32), generate

    @intrinsic
    def stored(typing_context, out, values, place, width, rows_left, columns_left):
        """Write the values to rows of ``width`` elements of `out`, from address ``place`` on."""
        size = values.dtype.bitwidth // 8

        def generate(context, builder, signature, args):
            _, values_, address, stride, *left = args
            there = ir.PointerType(context.get_data_type(values.dtype), 1)
            stride = builder.mul(stride, ir.Constant(I64, 8 * size))
            for number, (i, j) in enumerate(grid):
                places = (ir.Constant(I32, place) for place in (8 * i, column_of(j)))
                inside = [builder.icmp_signed(">", *two) for two in zip(left, places)]
                with builder.if_then(builder.and_(*inside)):
                    to = builder.add(address, ir.Constant(I64, column_of(j) * size))
                    value = builder.extract_value(values_, number)
                    builder.store(value, builder.inttoptr(to, there))
                if j == R - 1:
                    address = builder.add(address, stride)

        left = types.int32, types.int32
        return types.void(out, values, types.int64, types.int64, *left), generate

    @intrinsic
    def weighted(typing_context, values, W, at):
        """The sum of each row's values times the weights of its columns, the first at `at`."""

        def generate(context, builder, signature, args):
            first = element(context, builder, W, args[1], args[2])
            kind = context.get_data_type(W.dtype)
            pair = ir.VectorType(kind, 2).as_pointer()
            sums = [ir.Constant(kind, 0.0)] * R
            for j in range(0, R, 2):
                there = builder.bitcast(offset(builder, first, column_of(j)), pair)
                both = builder.load(there, align=2 * W.dtype.bitwidth // 8)
                for e in range(2):
                    weight = builder.extract_element(both, ir.Constant(I32, e))
                    for i in range(R):
                        value = builder.extract_value(args[0], R * i + j + e)
                        sums[i] = builder.fma(value, weight, sums[i])
            return context.make_tuple(builder, signature.return_type, sums)

        return types.UniTuple(W.dtype, R)(values, W, at), generate

    @intrinsic
    def spread(typing_context, sums, array, at):
        """Write the sums of a lane's rows to rows of ``width`` elements, from `at` on."""

        def generate(context, builder, signature, args):
            first = element(context, builder, array, args[1], args[2])
            for i in range(R):
                value = builder.extract_value(args[0], i)
                builder.store(value, offset(builder, first, 8 * i * width))

        return types.void(sums, array, at), generate

    return at_rows, at_columns, activated, within, stored, weighted, spread
