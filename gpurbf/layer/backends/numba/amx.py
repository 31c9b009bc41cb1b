"""The micro-kernel for Intel AMX: 32 rows × 32 centers in four tile registers, 8-bit products.

Same signature as the kernels of packed rows in `microkernels`. x is packed in panels of 32 rows, 64
inputs a step, so that every tile of 16 rows is 1024 contiguous, aligned bytes (unaligned tiles are
3.4 times slower); c is packed like the operand of the other 8-bit kernels, 16 of whose steps are
one tile. Loads and products alternate, and the four accumulators use each loaded tile twice. The
tile registers belong to a thread: `enter` configures them, `leave` releases them.
"""

import ctypes
import functools
import sys

import numpy as np
from llvmlite import ir

from gpurbf.layer.backends.numba.microkernels import BLOCK, instruction, loop, place_of, pointer_to

TILE = 1024  # bytes of a tile register

# What `enter` loads: palette 1, eight tiles of 16 rows × 64 bytes.
CONFIGURATION = np.zeros(64, np.uint8)
CONFIGURATION[0] = 1
CONFIGURATION[16:32:2] = 64
CONFIGURATION[48:56] = 16

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
# The tile registers: 0 to 3 are sums, 4 and 5 rows, 6 and 7 centers.
_SUMS, _ROWS, _CENTERS = range(4), (4, 5), (6, 7)


@functools.cache
def permission():
    """Ask Linux once for the tile registers of this process; None if granted, else why not."""
    if not sys.platform.startswith("linux"):
        return "AMX needs Linux"
    if ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA):
        return f"the system denies the tile registers (arch_prctl: errno {ctypes.get_errno()})"
    return None


def _tile(builder, name, *tiles, memory=()):
    """Write an instruction on tile registers, and on memory: its address and bytes between rows."""
    if memory:
        address, apart = memory
        memory = pointer_to(builder, address, 0, _BYTE), _WORD(apart)
    instruction(builder, f"llvm.x86.{name}", ir.VoidType(), *map(_BYTE, tiles), *memory)


def multiply(builder, total):
    """Add the products of a tile of rows and one of centers to the sums number `total`."""
    # signed rows, unsigned centers, as everywhere
    _tile(builder, "tdpbsud", total, _ROWS[total // 2], _CENTERS[total % 2])


def dot(builder, x, places, c, c_stride, steps, out, begun):
    """out (32 × 32 int32) = the products of `steps` · 64 inputs; `begun` is 0."""

    def step(number, places, c):
        rows = place_of(builder, x, places)
        _tile(builder, "tileloadd64", 4, memory=(rows, 64))
        _tile(builder, "tileloadd64", 6, memory=(c, 64))
        multiply(builder, 0)
        _tile(builder, "tileloadd64", 7, memory=(builder.add(c, c_stride), 64))
        multiply(builder, 1)
        _tile(builder, "tileloadd64", 5, memory=(builder.add(rows, _WORD(TILE)), 64))
        multiply(builder, 2)
        multiply(builder, 3)
        number, places = builder.add(number, _WORD(1)), builder.add(places, _WORD(4))
        again = builder.icmp_signed("<", number, steps)
        return again, [number, places, builder.add(c, _WORD(TILE))]

    for total in _SUMS:
        _tile(builder, "tilezero", total)
    loop(builder, [_WORD(0), places, c], step)
    for total in _SUMS:
        at = builder.add(out, _WORD(total // 2 * 16 * 4 * BLOCK + total % 2 * 64))
        _tile(builder, "tilestored64", total, memory=(at, 4 * BLOCK))


def enter(builder, config):
    """Configure the tile registers of this thread from the address of `CONFIGURATION`."""
    config = pointer_to(builder, config, 0, _BYTE)
    instruction(builder, "llvm.x86.ldtilecfg", ir.VoidType(), config)


def leave(builder, config):
    """Give the tile registers back."""
    instruction(builder, "llvm.x86.tilerelease", ir.VoidType())
