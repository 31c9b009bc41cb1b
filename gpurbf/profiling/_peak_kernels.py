"""Loops over registers only: the peak rate of a micro-kernel's instructions on this machine."""

import functools

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpurbf.layer.backends.numba import amx, microkernel_table
from gpurbf.layer.backends.numba.microkernels import LANES, compile_for, loop
from gpurbf.runtime.jit.caching import compiled

_i64 = ir.IntType(64)


def operations_a_step(name):
    """Multiplications and additions (or differences and additions) in one step of the loop."""
    kind = microkernel_table.KINDS[name]
    return 2 * kind.rows * kind.panels * LANES * kind.operation.group


def _tile_loop(builder, steps):
    """Write the loop of the AMX kernel: the four products of a step."""

    def step(number):
        for total in range(4):
            amx.multiply(builder, total)
        number = builder.add(number, _i64(1))
        return builder.icmp_signed("<", number, steps), [number]

    loop(builder, [_i64(0)], step)


@intrinsic(prefer_literal=True)
def register_loop(typing_context, name, steps, data):
    """`steps` steps of the kernel `name`; each sum is its own operand, so none can be left out."""

    def generate(context, builder, signature, args):
        _, steps, data = args
        if name.literal_value == "dot_amx":
            _tile_loop(builder, steps)
            return
        kind = microkernel_table.KINDS[name.literal_value]
        operation = kind.operation
        compile_for(builder, kind.target)
        inputs = ir.VectorType(operation.operand, kind.width)
        totals = ir.VectorType(operation.total, kind.width * operation.rows)
        pointer = builder.inttoptr(data, totals.as_pointer())
        first = builder.load(pointer, align=1)
        c = builder.bitcast(first, inputs)
        n_sums = kind.rows * kind.panels * LANES // (kind.width * operation.rows)

        def step(number, *old):
            new = [operation.combine(builder, t, builder.bitcast(t, inputs), c) for t in old]
            number = builder.add(number, _i64(1))
            return builder.icmp_signed("<", number, steps), [number, *new]

        # Equal sums would be computed once.
        distinct = [ir.Constant(totals, [i + 1] * totals.count) for i in range(n_sums)]
        _, *sums = loop(builder, [_i64(0), *distinct], step)
        for i, total in enumerate(sums):
            builder.store(total, builder.gep(pointer, [_i64(i)]), align=1)

    return types.void(name, types.intp, types.intp), generate


@functools.cache
def _compiled(name):
    """The loop of the kernel `name` as a C function."""

    def repeated(steps, data):
        register_loop(name, steps, data)

    repeated.__qualname__ = name  # the disk cache identifies it by this name
    return compiled(repeated, (None, None))


def run(name, steps):
    """Run `steps` steps in this thread, without the GIL."""
    data = np.ones(64 * 32, np.uint8)  # a register for every sum
    if name == "dot_amx":
        microkernel_table.compiled("enter_amx").ctypes(amx.CONFIGURATION.ctypes.data)
    _compiled(name).ctypes(steps, data.ctypes.data)
    if name == "dot_amx":
        microkernel_table.compiled("leave_amx").ctypes(amx.CONFIGURATION.ctypes.data)
