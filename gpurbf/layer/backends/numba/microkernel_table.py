"""The compiled micro-kernels by name: how each wants its operands packed, and its address."""

from typing import NamedTuple

import numpy as np
from numba import types

from gpurbf.layer.backends.numba import amx, matvec_kernels
from gpurbf.layer.backends.numba.matvec_kernels import partial_tile as partial
from gpurbf.layer.backends.numba.microkernels import KINDS, OPERATIONS, PRODUCTS, microkernel
from gpurbf.layer.backends.numba.microkernels import listed_microkernel as listed
from gpurbf.runtime.jit.caching import cached_cfunc
from gpurbf.runtime.once import once

# ruff: noqa: E501
# One function a kernel and no loop over them: Numba's disk cache knows a function by its line.
# fmt: off
_FUNCTIONS = {
    "dot_amx": amx.dot_amx,
    "dot_avx512vnni": lambda x, p, c, s, k, o, t: listed("dot_avx512vnni", x, p, c, s, k, o, t),
    "dot_avxvnni": lambda x, p, c, s, k, o, t: listed("dot_avxvnni", x, p, c, s, k, o, t),
    "dot_avx2": lambda x, p, c, s, k, o, t: listed("dot_avx2", x, p, c, s, k, o, t),
    "dot_generic": lambda x, p, c, s, k, o, t: listed("dot_generic", x, p, c, s, k, o, t),
    "dot32_avx512": lambda x, p, c, s, k, o, t: listed("dot32_avx512", x, p, c, s, k, o, t),
    "dot32_avx2": lambda x, p, c, s, k, o, t: listed("dot32_avx2", x, p, c, s, k, o, t),
    "dot32_generic": lambda x, p, c, s, k, o, t: listed("dot32_generic", x, p, c, s, k, o, t),
    "dot64_avx512": lambda x, p, c, s, k, o, t: listed("dot64_avx512", x, p, c, s, k, o, t),
    "dot64_avx2": lambda x, p, c, s, k, o, t: listed("dot64_avx2", x, p, c, s, k, o, t),
    "dot64_generic": lambda x, p, c, s, k, o, t: listed("dot64_generic", x, p, c, s, k, o, t),
    "manhattan_avx512": lambda x, p, c, s, k, o, t: listed("manhattan_avx512", x, p, c, s, k, o, t),
    "manhattan_avx2": lambda x, p, c, s, k, o, t: listed("manhattan_avx2", x, p, c, s, k, o, t),
    "manhattan_generic": lambda x, p, c, s, k, o, t: listed("manhattan_generic", x, p, c, s, k, o, t),
    "manhattan32_avx512": lambda x, p, c, s, k, o, t: listed("manhattan32_avx512", x, p, c, s, k, o, t),
    "manhattan32_avx2": lambda x, p, c, s, k, o, t: listed("manhattan32_avx2", x, p, c, s, k, o, t),
    "manhattan32_generic": lambda x, p, c, s, k, o, t: listed("manhattan32_generic", x, p, c, s, k, o, t),
    "manhattan64_avx512": lambda x, p, c, s, k, o, t: listed("manhattan64_avx512", x, p, c, s, k, o, t),
    "manhattan64_avx2": lambda x, p, c, s, k, o, t: listed("manhattan64_avx2", x, p, c, s, k, o, t),
    "manhattan64_generic": lambda x, p, c, s, k, o, t: listed("manhattan64_generic", x, p, c, s, k, o, t),
    "score32_avx512": lambda x, c, s, k, o, t: microkernel("score32_avx512", x, c, s, k, o, t),
    "score32_avx2": lambda x, c, s, k, o, t: microkernel("score32_avx2", x, c, s, k, o, t),
    "score32_generic": lambda x, c, s, k, o, t: microkernel("score32_generic", x, c, s, k, o, t),
    "score64_avx512": lambda x, c, s, k, o, t: microkernel("score64_avx512", x, c, s, k, o, t),
    "score64_avx2": lambda x, c, s, k, o, t: microkernel("score64_avx2", x, c, s, k, o, t),
    "score64_generic": lambda x, c, s, k, o, t: microkernel("score64_generic", x, c, s, k, o, t),
    "partial32_avx512": lambda x, c, s, k, o, t: partial("partial32_avx512", x, c, s, k, o, t),
    "partial32_avx2": lambda x, c, s, k, o, t: partial("partial32_avx2", x, c, s, k, o, t),
    "partial32_generic": lambda x, c, s, k, o, t: partial("partial32_generic", x, c, s, k, o, t),
    "partial64_avx512": lambda x, c, s, k, o, t: partial("partial64_avx512", x, c, s, k, o, t),
    "partial64_avx2": lambda x, c, s, k, o, t: partial("partial64_avx2", x, c, s, k, o, t),
    "partial64_generic": lambda x, c, s, k, o, t: partial("partial64_generic", x, c, s, k, o, t),
    "single32_avx512": lambda x, c, s, k, o, t: partial("single32_avx512", x, c, s, k, o, t),
    "single32_avx2": lambda x, c, s, k, o, t: partial("single32_avx2", x, c, s, k, o, t),
    "single32_generic": lambda x, c, s, k, o, t: partial("single32_generic", x, c, s, k, o, t),
    "single64_avx512": lambda x, c, s, k, o, t: partial("single64_avx512", x, c, s, k, o, t),
    "single64_avx2": lambda x, c, s, k, o, t: partial("single64_avx2", x, c, s, k, o, t),
    "single64_generic": lambda x, c, s, k, o, t: partial("single64_generic", x, c, s, k, o, t),
    "gram32_avx512": lambda x, c, s, k, o, t: microkernel("gram32_avx512", x, c, s, k, o, t),
    "gram32_avx2": lambda x, c, s, k, o, t: microkernel("gram32_avx2", x, c, s, k, o, t),
    "gram32_generic": lambda x, c, s, k, o, t: microkernel("gram32_generic", x, c, s, k, o, t),
    "gram64_avx512": lambda x, c, s, k, o, t: microkernel("gram64_avx512", x, c, s, k, o, t),
    "gram64_avx2": lambda x, c, s, k, o, t: microkernel("gram64_avx2", x, c, s, k, o, t),
    "gram64_generic": lambda x, c, s, k, o, t: microkernel("gram64_generic", x, c, s, k, o, t),
    "gram16_avx512vnni": lambda x, c, s, k, o, t: microkernel("gram16_avx512vnni", x, c, s, k, o, t),
    "gram16_avxvnni": lambda x, c, s, k, o, t: microkernel("gram16_avxvnni", x, c, s, k, o, t),
    "gram16_avx2": lambda x, c, s, k, o, t: microkernel("gram16_avx2", x, c, s, k, o, t),
    "gram16_generic": lambda x, c, s, k, o, t: microkernel("gram16_generic", x, c, s, k, o, t),
}
# fmt: on


class Layout(NamedTuple):
    """How a micro-kernel wants its operands (see `tiles`), and what it computes with."""

    rows: int  # of a panel of samples
    panels: int  # of centers a call
    x_dtype: np.dtype
    x_group: int
    c_dtype: np.dtype
    c_group: int
    depth: int  # inputs are padded to a multiple of this
    out_dtype: np.dtype
    arithmetic: str


class Kernel(NamedTuple):
    """A micro-kernel as loops call it: its address, its rows, and panels (outputs) a call."""

    address: int
    rows: int
    strip: int


def _layout(kind):
    of = OPERATIONS[kind.operation]
    x, c, out = (np.dtype(number) for number in (of.x, of.c, of.out))
    return Layout(kind.rows, kind.panels, x, of.group, c, of.group, of.group, out, of.arithmetic)


_LAYOUTS = {name: _layout(kind) for name, kind in (KINDS | matvec_kernels.KINDS).items()}
_u8, _s8, _s32 = np.dtype(np.uint8), np.dtype(np.int8), np.dtype(np.int32)
_LAYOUTS["dot_amx"] = Layout(
    amx.ROWS, amx.PANELS, _s8, amx.GROUP, _u8, 4, amx.GROUP, _s32, PRODUCTS
)


def layout_of(name):
    """The layout of the kernel `name`, without compiling it."""
    return _LAYOUTS[name]


def signature(name):
    """Its arguments: addresses and bytes, see `tiles`."""
    listed = name.startswith(("dot", "manhattan"))
    return types.void(*(types.intp,) * (7 if listed else 6))


@once
def compiled(name):
    """The C function `name`, kept alive; compiled or loaded from the disk cache at first use."""
    if name in ("enter_amx", "leave_amx"):
        function = amx.enter if name == "enter_amx" else amx.leave
        return cached_cfunc(types.void(types.intp))(function)
    return cached_cfunc(signature(name))(_FUNCTIONS[name])


def address(name):
    """Its address."""
    return compiled(name).address


def kernel(name):
    """What loops need to call the kernel `name`."""
    return Kernel(address(name), _LAYOUTS[name].rows, _LAYOUTS[name].panels)


def padded(count, multiple):
    """The least positive multiple that is not below count (a kernel takes at least one step)."""
    return max(1, -(-count // multiple)) * multiple
