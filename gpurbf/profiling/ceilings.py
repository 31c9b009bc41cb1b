"""Ceilings of the machine: arithmetic by kind, and memory; measured once a process."""

from __future__ import annotations

import functools
import itertools
import timeit
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import FENCES
from gpurbf.runtime.threads import parallel_for, thread_limit

microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")
peak_kernels = lazy_module("gpurbf.profiling._peak_kernels")


# Of each of two float32 arrays, larger than the caches that they must not fit in.
_NUMBERS = 1 << 25
_RUNS = 20
# A product that takes so long is one of large matrices.
_SECONDS = 0.05
# Runs of a loop over registers, and what each of them takes.
_PEAK_RUNS, _PEAK_SECONDS = 40, 0.02


@functools.cache
def compute(kind: str, xp: ModuleType = np) -> float | None:
    """Operations a second of a kind of arithmetic such as ``"float32"``, on all threads.

    On a CPU the instructions of the package's own kernel on registers alone; where that has no
    loop of its own, and on the device of another array library, a product of large matrices. None
    where neither is known.
    """
    found = limit(kind) if xp is np else None
    if found is None and kind in ("float32", "float64"):
        found = product_rate(kind, xp)
    return found


@functools.cache
def bandwidth(xp: ModuleType = np) -> float:
    """Bytes a second, read and written, of STREAM's scale [1]_, by the array library.

    A copy by the C library may be slower: it takes other instructions.

    References
    ----------
    .. [1] J. D. McCalpin, "Memory bandwidth and machine balance in current high performance
       computers", IEEE TCCA Newsletter, 1995.
    """
    return scale_rate(xp.multiply, xp)


def scale_rate(multiply: Callable[[Any, Any, Any], Any], xp: ModuleType = np) -> float:
    """Bytes a second of ``multiply(array, number, result)`` on arrays larger than the caches."""
    source, target = xp.ones(_NUMBERS, xp.float32), xp.zeros(_NUMBERS, xp.float32)
    n = thread_limit() if xp is np else 1
    bounds = [_NUMBERS * i // n for i in range(n + 1)]

    def scale(i: int) -> None:
        part = slice(bounds[i], bounds[i + 1])
        multiply(source[part], xp.float32(3), target[part])

    return (source.nbytes + target.nbytes) / _best(lambda: parallel_for(scale, n))


def product_rate(dtype: str, xp: ModuleType = np) -> float:
    """Operations a second of the array library's own product of large matrices."""
    n, seconds = 512, 0.0
    while seconds < _SECONDS:
        n *= 2
        A = xp.ones((n, n), dtype)
        product = functools.partial(xp.matmul, A, A, out=xp.empty_like(A))
        seconds = _best(product, runs=2)
    return 2 * n**3 / _best(product)


def _best(work: Callable[[], Any], runs: int = _RUNS) -> float:
    """Seconds of the fastest run, of a device's work too."""

    def whole() -> None:
        work()
        for fence in FENCES:
            fence()

    return min(timeit.repeat(whole, number=1, repeat=runs))


@functools.cache
def limit(kind: str) -> float | None:
    """Operations a second that this CPU's kernel for that arithmetic can reach, measured once.

    None where the kernel has no loop over registers alone, as the generic ones.
    """
    kernel, _ = cpu_kernel.choose_kernel()
    tasks = [
        *itertools.product(("dot", "manhattan"), ("uint8", "float32", "float64")),
        ("gram", "int16"),
    ]
    for task, dtype in tasks:
        name = cpu_kernel.kernel_for(task, dtype, kernel)
        if microkernel_table.layout_of(name).arithmetic == kind:
            return None if name.endswith("_generic") else peak(name)
    return None


def peak(name: str) -> float:
    """Operations a second of all threads together for a kernel such as ``"dot_avx512vnni"``.

    A multiplication and its addition, or a difference and its addition, count as two. The best of
    many short runs, one of which finds the machine undisturbed.
    """
    n_threads, steps, best = thread_limit(), 1000, 0.0
    for _ in range(_PEAK_RUNS):
        run = functools.partial(_run, name, steps)
        took = timeit.timeit(functools.partial(parallel_for, run, n_threads), number=1)
        best = max(best, n_threads * steps * peak_kernels.operations_a_step(name) / took)
        steps = max(1000, int(steps * _PEAK_SECONDS / took))
    return best


def _run(name: str, steps: int, thread: int) -> None:
    peak_kernels.run(name, steps)
