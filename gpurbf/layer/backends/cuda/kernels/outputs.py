"""The way of a thread's outputs, which are registers all the way to the result.

They become activations where they are. Stored H is written from there: a warp's store is eight
rows of 32 bytes or more, all of each sector. For H @ W a thread adds up its own columns times their
weights, and only these sums, one a row and column of W, are shared.

Intrinsics, as in `registers.py`, whose layout this follows: outputs in every eighth row and in two
columns of every eight. `tests/layer/cuda/kernels_in_numpy.py` has these functions for
Numba's simulator.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpurbf.layer.backends.cuda.kernels.registers import FRAGMENT_D, I32, element, load16, offset

I64 = ir.IntType(64)


def layout(product, R):
    """How many rows a lane's R × R outputs are in, and which of them is in its row i, column j."""

    def scalar(i, j):
        return R * i + j

    def mma(i, j):
        return 16 * (i // 2) + 4 * (j // 2) + FRAGMENT_D.index((8 * (i % 2), j % 2))

    def wgmma(i, j):
        return 4 * (j // 2) + FRAGMENT_D.index((8 * i, j % 2))

    return {"mma": (8, mma), "wgmma": (2, wgmma)}.get(product, (R, scalar))


def column_of(j):
    """From a lane's first column to its column j."""
    return 8 * (j // 2) + j % 2


@intrinsic
def added(typing_context, total, array, at):
    """total + the sum of 16 bytes of an array, from an element on."""

    def generate(context, builder, signature, args):
        value = args[0]
        for summand in load16(builder, element(context, builder, array, args[1], args[2])):
            value = builder.fadd(value, summand)
        return value

    return total(total, array, at), generate


def functions(product, R):
    """at_rows, at_columns, activated, within, weighted; what makes stored and spread of a width."""
    rows, number = layout(product, R)
    columns = R * R // rows
    grid = [(i, j) for i in range(rows) for j in range(columns)]

    @intrinsic
    def at_rows(typing_context, array, at):
        """The elements of a lane's rows, the first of which is number `at`."""

        def generate(context, builder, signature, args):
            first = element(context, builder, array, args[0], args[1])
            values = [builder.load(offset(builder, first, 8 * i)) for i in range(rows)]
            return context.make_tuple(builder, signature.return_type, values)

        return types.UniTuple(array.dtype, rows)(array, at), generate

    @intrinsic
    def at_columns(typing_context, array, at, left):
        """Terms of its columns; beyond the `left` ones that there are from `at` on, the last."""

        def generate(context, builder, signature, args):
            first = element(context, builder, array, args[0], args[1])
            last, values = builder.sub(args[2], ir.Constant(I32, 1)), []
            for j in range(columns):
                column = ir.Constant(I32, column_of(j))
                inside = builder.icmp_signed("<", column, last)
                place = builder.sext(builder.select(inside, column, last), I64)
                values.append(builder.load(builder.gep(first, [place], inbounds=True)))
            return context.make_tuple(builder, signature.return_type, values)

        return types.UniTuple(array.dtype, columns)(array, at, types.int32), generate

    @intrinsic
    def activated(typing_context, acc, row_terms, column_terms, function, numbers):
        """function(output, term of its row, term of its column, numbers) of each output."""
        kinds = acc.dtype, row_terms.dtype, column_terms.dtype, numbers
        signature = function.get_call_type(typing_context, kinds, {})

        def generate(context, builder, own, args):
            call = context.get_function(function, signature)
            values = [None] * len(grid)
            for i, j in grid:
                of_three = zip(args[:3], (number(i, j), i, j))
                operands = [builder.extract_value(*one) for one in of_three]
                values[number(i, j)] = call(builder, [*operands, args[4]])
            return context.make_tuple(builder, own.return_type, values)

        result = types.UniTuple(signature.return_type, len(grid))
        return result(acc, row_terms, column_terms, function, numbers), generate

    @intrinsic
    def within(typing_context, values, left):
        """Values with zeros where there are no more columns: `left` of them from the first on."""

        def generate(context, builder, signature, args):
            kept = [None] * len(grid)
            for i, j in grid:
                value = builder.extract_value(args[0], number(i, j))
                inside = builder.icmp_signed(">", args[1], ir.Constant(I32, column_of(j)))
                kept[number(i, j)] = builder.select(inside, value, ir.Constant(value.type, 0))
            return context.make_tuple(builder, values, kept)

        return values(values, types.int32), generate

    def storing(together):
        @intrinsic
        def stored(typing_context, out, values, place, width, rows_left, columns_left):
            """Write them to rows of so many elements of `out`, the first of them at an address."""
            size = values.dtype.bitwidth // 8

            def generate(context, builder, signature, args):
                _, values_, address, stride, *left = args
                kind = ir.VectorType(context.get_data_type(values.dtype), together)
                there = ir.PointerType(kind, 1)
                stride = builder.mul(stride, ir.Constant(I64, 8 * size))
                for i in range(rows):
                    for j in range(0, columns, together):
                        places = (ir.Constant(I32, place) for place in (8 * i, column_of(j)))
                        inside = [builder.icmp_signed(">", *two) for two in zip(left, places)]
                        with builder.if_then(builder.and_(*inside)):
                            some = ir.Constant(kind, ir.Undefined)
                            for e in range(together):
                                value = builder.extract_value(values_, number(i, j + e))
                                some = builder.insert_element(some, value, ir.Constant(I32, e))
                            to = builder.add(address, ir.Constant(I64, column_of(j) * size))
                            to = builder.inttoptr(to, there)
                            builder.store(some, to, align=together * size)
                    address = builder.add(address, stride)
                return context.get_dummy_value()

            left = types.int32, types.int32
            return types.void(out, values, types.int64, types.int64, *left), generate

        return stored

    @intrinsic
    def weighted(typing_context, values, W, at):
        """The sum of each row's values times the weights of its columns, the first at `at`."""

        def generate(context, builder, signature, args):
            first = element(context, builder, W, args[1], args[2])
            kind = context.get_data_type(W.dtype)
            pair = ir.VectorType(kind, 2).as_pointer()
            sums = [ir.Constant(kind, 0.0)] * rows
            for j in range(0, columns, 2):
                there = builder.bitcast(offset(builder, first, column_of(j)), pair)
                both = builder.load(there, align=2 * W.dtype.bitwidth // 8)
                for e in range(2):
                    weight = builder.extract_element(both, ir.Constant(I32, e))
                    for i in range(rows):
                        value = builder.extract_value(args[0], number(i, j + e))
                        sums[i] = builder.fma(value, weight, sums[i])
            return context.make_tuple(builder, signature.return_type, sums)

        return types.UniTuple(W.dtype, rows)(values, W, at), generate

    def spreading(width):
        @intrinsic
        def spread(typing_context, sums, array, at):
            """Write the sums of a lane's rows to rows of so many elements, from `at` on."""

            def generate(context, builder, signature, args):
                first = element(context, builder, array, args[1], args[2])
                for i in range(rows):
                    value = builder.extract_value(args[0], i)
                    builder.store(value, offset(builder, first, 8 * i * width))
                return context.get_dummy_value()

            return types.void(sums, array, at), generate

        return spread

    return at_rows, at_columns, activated, within, storing, weighted, spreading
