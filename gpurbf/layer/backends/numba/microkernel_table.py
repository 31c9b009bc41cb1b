"""The compiled micro-kernels by name: how each wants its operands packed, and its address."""

from typing import NamedTuple

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gpurbf.layer.backends.numba import amx, matvec_kernels, microkernels
from gpurbf.layer.backends.numba.microkernels import OPERATIONS, Kind, compile_for
from gpurbf.runtime.jit import caching
from gpurbf.runtime.lazy import once


class Kernel(NamedTuple):
    """A micro-kernel as loops call it: its address, its rows, and panels (outputs) a call."""

    address: int
    rows: int
    strip: int


KINDS = microkernels.KINDS | matvec_kernels.KINDS
# 64 inputs of a row are a step; centers are packed as for the other kernel of such bytes.
_BYTES = OPERATIONS["vpdpbusd"]._replace(group=64, c_group=4)
KINDS["dot_amx"] = Kind(_BYTES, width=16, rows=32, panels=2)
_AMX = {"dot_amx": amx.dot, "enter_amx": amx.enter, "leave_amx": amx.leave}


def write(builder, name, *arguments):
    """Write the LLVM code of the micro-kernel `name`."""
    if name in _AMX:
        _AMX[name](builder, *arguments)
        return
    kind = KINDS[name]
    compile_for(builder, kind.target)
    module = matvec_kernels if name in matvec_kernels.KINDS else microkernels
    module.build(builder, kind, *arguments)


@intrinsic(prefer_literal=True)
def _written(typing_context, name, *arguments):
    """The micro-kernel `name`, inlined here."""

    def generate(context, builder, signature, args):
        write(builder, name.literal_value, *cgutils.unpack_tuple(builder, args[1]))

    return types.void(name, types.StarArgTuple([types.intp] * len(arguments))), generate


def _function(name):
    """The micro-kernel as a Python function that Numba compiles."""
    # These functions hold only names: for the disk cache an intrinsic changes with every process.
    if name in ("enter_amx", "leave_amx"):

        def function(config):
            _written(name, config)

    elif KINDS[name].listed:

        def function(x, places, c, c_stride, steps, out, begun):  # type: ignore[misc]
            _written(name, x, places, c, c_stride, steps, out, begun)

    else:

        def function(x, c, c_stride, steps, out, out_stride):  # type: ignore[misc]
            _written(name, x, c, c_stride, steps, out, out_stride)

    function.__qualname__ = name  # the disk cache identifies it by this name
    return function


@once
def compiled(name):
    """The C function `name`, kept alive; compiled or loaded from the disk cache at first use.

    All its arguments are addresses or numbers of bytes.
    """
    function = _function(name)
    return caching.compiled(function, (None,) * function.__code__.co_argcount)


def address(name):
    """The address of the kernel `name`."""
    return compiled(name).address


def kernel(name):
    """The kernel `name`, as loops call it."""
    return Kernel(address(name), KINDS[name].rows, KINDS[name].panels)


def padded(count, multiple):
    """The smallest positive multiple that is >= count (a kernel takes at least one step)."""
    return max(1, -(-count // multiple)) * multiple
