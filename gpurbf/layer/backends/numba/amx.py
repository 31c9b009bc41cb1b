"""The micro-kernel for Intel AMX: 32 rows × 32 centers in four tile registers, 8-bit products.

Same signature as the kernels of `microkernels`. x is packed in panels of 32 rows, 64 inputs a step,
so that every tile of 16 rows is 1024 contiguous, aligned bytes (unaligned tiles are 3.4 times
slower); c is packed like the operand of the other 8-bit kernels, 16 of whose steps are one tile.
Loads and products alternate, and the four accumulators use each loaded tile twice. The tile
registers belong to a thread: `enter` configures them, `leave` releases them.
"""

import ctypes
import functools
import sys

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gpurbf.layer.backends.numba.microkernels import BLOCK
from gpurbf.runtime.jit.llvm import pointer

ROWS, PANELS, GROUP = 32, 2, 64  # of a block; inputs a step
TILE = 1024  # bytes of a tile register

# What `enter` loads: palette 1, eight tiles of 16 rows × 64 bytes.
CONFIGURATION = np.zeros(64, np.uint8)
CONFIGURATION[0] = 1
CONFIGURATION[16:32:2] = 64
CONFIGURATION[48:56] = 16

_BYTE = ir.IntType(8)
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def permission():
    """Ask Linux once for the tile registers of this process; None if granted, else why not."""
    if not sys.platform.startswith("linux"):
        return "AMX needs Linux"
    if ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA):
        return f"the system denies the tile registers (arch_prctl: errno {ctypes.get_errno()})"
    return None


def _instruction(name, *immediates):
    """A Numba function for one tile instruction; it takes none, an address, or also a stride."""

    @intrinsic
    def instruction(typing_context, *operands):
        def generate(context, builder, signature, args):
            values = [_BYTE(i) for i in immediates]
            if operands:
                place, *stride = cgutils.unpack_tuple(builder, args[0])
                values += [builder.inttoptr(place, _BYTE.as_pointer()), *stride]
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)
            return context.get_dummy_value()

        return types.void(types.StarArgTuple([types.intp] * len(operands))), generate

    return instruction


_configure = _instruction("llvm.x86.ldtilecfg")
_release = _instruction("llvm.x86.tilerelease")
_zero0, _zero1, _zero2, _zero3 = (_instruction("llvm.x86.tilezero", t) for t in range(4))
_store0, _store1, _store2, _store3 = (_instruction("llvm.x86.tilestored64", t) for t in range(4))
_load_x0, _load_x1, _load_c0, _load_c1 = (
    _instruction("llvm.x86.tileloadd64", t) for t in range(4, 8)
)
# signed rows, unsigned centers, as everywhere
_dot00 = _instruction("llvm.x86.tdpbsud", 0, 4, 6)
_dot01 = _instruction("llvm.x86.tdpbsud", 1, 4, 7)
_dot10 = _instruction("llvm.x86.tdpbsud", 2, 5, 6)
_dot11 = _instruction("llvm.x86.tdpbsud", 3, 5, 7)


def dot_amx(x, places, c, c_stride, steps, out, begun):
    """out (32 × 32 int32) = the products of `steps` · 64 inputs; `begun` is 0."""
    out_stride = 4 * BLOCK
    _zero0()
    _zero1()
    _zero2()
    _zero3()
    for step in range(steps):
        rows = x + pointer(places + 4 * step, np.int32)[0]
        _load_x0(rows, 64)
        _load_c0(c, 64)
        _dot00()
        _load_c1(c + c_stride, 64)
        _dot01()
        _load_x1(rows + TILE, 64)
        _dot10()
        _dot11()
        c += TILE
    _store0(out, out_stride)
    _store1(out + 64, out_stride)
    _store2(out + 16 * out_stride, out_stride)
    _store3(out + 16 * out_stride + 64, out_stride)


def enter(config):
    """Configure the tile registers of this thread from the address of `CONFIGURATION`."""
    _configure(config)


def leave(config):
    """Give the tile registers back."""
    _release()
