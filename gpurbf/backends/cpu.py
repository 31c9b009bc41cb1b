"""The CPU's matrix and vector features, and which of the kernels they allow."""

from __future__ import annotations

import functools
import os

from gpurbf.backends import BackendUnavailable

# In order of preference; a kernel needs all of its features.
KERNELS: dict[str, frozenset[str]] = {
    "amx": frozenset({"amx-int8", "amx-tile", "avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avx512vnni": frozenset({"avx512vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avxvnni": frozenset({"avxvnni", "avx2", "fma"}),
    "avx2": frozenset({"avx2", "fma"}),
    "generic": frozenset(),
}
# The vectors of a kernel's companions: floating-point products, differences, scores.
VECTORS = {
    "amx": "avx512",
    "avx512vnni": "avx512",
    "avxvnni": "avx2",
    "avx2": "avx2",
    "generic": "generic",
}
VARIABLE = "GPURBF_CPU_KERNEL"


@functools.cache
def cpu_features() -> frozenset[str]:
    """What this CPU has, its system saves and Numba compiles for, in LLVM's names."""
    import llvmlite.binding as llvm
    from numba.core.registry import cpu_target

    try:
        host = {name for name, present in llvm.get_host_cpu_features().items() if present}
    except RuntimeError:  # LLVM cannot tell on every system
        return frozenset()
    target = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return frozenset(host & {name[1:] for name in target if name.startswith("+")})


@functools.cache
def missing(kernel: str) -> str | None:
    """Why this machine cannot run a kernel; None if it can."""
    absent = sorted(KERNELS[kernel] - cpu_features())
    if absent:
        return f"the CPU lacks {', '.join(absent)}"
    if kernel == "amx":
        from gpurbf.kernels.amx import permission

        return permission()
    return None


def choose_kernel() -> tuple[str, str]:
    """The kernel to use and the reason: what ``GPURBF_CPU_KERNEL`` says, else the best there is.

    Raises
    ------
    ValueError
        If the variable names no kernel.
    BackendUnavailable
        If this machine cannot run the kernel it names.
    """
    forced = os.environ.get(VARIABLE, "")
    if forced:
        if forced not in KERNELS:
            raise ValueError(f"{VARIABLE}={forced!r}: use one of {', '.join(KERNELS)}.")
        if why := missing(forced):
            raise BackendUnavailable(f"{VARIABLE}={forced} cannot run here: {why}.")
        return forced, f"{VARIABLE}={forced}"
    best = next(name for name in KERNELS if missing(name) is None)
    return best, "the best that this CPU has"
