"""The hardware's limit: how fast the instructions of a kernel run on registers alone."""

from __future__ import annotations

import itertools
from functools import cache, partial

from gpurbf.backends import cpu
from gpurbf.backends.clock import seconds as seconds_of
from gpurbf.backends.threads import parallel_for, thread_limit


@cache
def limit(kind: str) -> float | None:
    """Operations a second that this CPU's kernel for that arithmetic can reach, measured once.

    None where the kernel has no loop over registers alone, as the generic ones.
    """
    from gpurbf.kernels.products import product

    kernel, _ = cpu.choose_kernel()
    tasks = [
        *itertools.product(("dot", "manhattan"), ("uint8", "float32", "float64")),
        ("gram", "int16"),
    ]
    for task, dtype in tasks:
        name = cpu.kernel_for(task, dtype, kernel)
        if product(name).arithmetic == kind:
            try:
                # Many short runs: one of them finds the machine undisturbed.
                return max(peak(name, 0.02) for _ in range(8))
            except KeyError:
                return None
    return None


def peak(name: str, seconds: float = 0.1) -> float:
    """Operations a second of all threads together for a kernel such as ``"dot_avx512vnni"``.

    A multiplication and its addition, or a difference and its addition, count as two. The best of
    five runs; KeyError where a kernel has no loop of its own (the generic ones).
    """
    from gpurbf.kernels.peak import operations_a_step

    n_threads, steps, best = thread_limit(), 1000, 0.0
    for _ in range(5):
        took = seconds_of(partial(parallel_for, partial(_run, name, steps), n_threads))
        best = max(best, n_threads * steps * operations_a_step(name) / took)
        steps = max(1000, int(steps * seconds / took))
    return best


def _run(name: str, steps: int, thread: int) -> None:
    from gpurbf.kernels import peak as loops

    loops.run(name, steps)
