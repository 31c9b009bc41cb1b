"""Threads that come back from kernels wait for each other without going to sleep.

A thread that wants Python's lock while another has it sleeps, and is woken up 0.1 ms after it could
go on, most of which the system takes. What SVC's solver does in Python between two kernels takes a
tenth of that. So a kernel of the solver looks before it ends whether another thread is between two
kernels now, and if so waits for it, for a moment at the most: the lock is free then.
"""

import os

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from gpurbf.runtime.jit.caching import cached
from gpurbf.runtime.jit.llvm import add_pause

# How many threads are between two kernels, or less where some do not say so. Kernels on disk know
# it by its name.
between = np.zeros(1, np.int64)
_NAME = "gpurbf_threads_between_kernels"
binding.add_symbol(_NAME, between.ctypes.data)

# Looks at it, some 30 to 90 µs: longer than what is done in Python.
_MAX_LOOKS = 2000
_WORD = ir.IntType(64)


def _forget_threads():
    """A forked child has none of its parent's threads."""
    between[:] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _count(builder):
    """Where the number is."""
    names = builder.module.globals
    return names[_NAME] if _NAME in names else ir.GlobalVariable(builder.module, _WORD, _NAME)


def _add(builder, number):
    builder.atomic_rmw("add", _count(builder), ir.Constant(_WORD, number), "seq_cst")


def _adding(number):
    """An intrinsic that adds a number to it."""

    @intrinsic
    def add(typing_context):
        def generate(context, builder, signature, args):
            _add(builder, number)
            return context.get_dummy_value()

        return types.void(), generate

    return add


# Count this thread as one less, or one more, between two kernels, without waiting.
begin_kernel, _is_between = _adding(-1), _adding(1)


@intrinsic
def end_kernel(typing_context):
    """Count this thread as one between two kernels, once no other is or after a moment."""

    def generate(context, builder, signature, args):
        before = builder.block
        look, wait, over = (builder.append_basic_block(name) for name in ("look", "wait", "over"))
        builder.branch(look)
        builder.position_at_end(look)
        looks = builder.phi(_WORD)
        looks.add_incoming(ir.Constant(_WORD, 0), before)
        others = builder.load_atomic(_count(builder), "monotonic", 8)
        nobody = builder.icmp_signed("<=", others, ir.Constant(_WORD, 0))
        enough = builder.icmp_signed(">=", looks, ir.Constant(_WORD, _MAX_LOOKS))
        builder.cbranch(builder.or_(nobody, enough), over, wait)
        builder.position_at_end(wait)
        add_pause(builder)
        looks.add_incoming(builder.add(looks, ir.Constant(_WORD, 1)), wait)
        builder.branch(look)
        builder.position_at_end(over)
        _add(builder, 1)
        return context.get_dummy_value()

    return types.void(), generate


@cached()
def enter():
    """Count this thread as one between two kernels; it has the lock and waits for nobody."""
    _is_between()


@cached()
def leave():
    """This thread no longer runs Python between two kernels."""
    begin_kernel()
