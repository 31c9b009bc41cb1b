"""Which micro-kernels the CPU can run, and the one that is used."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from gpurbf.runtime.cpu import cpu_features
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module

amx = lazy_module("gpurbf.layer.backends.numba.amx")
microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")


# In order of preference; a kernel needs all of its features.
FEATURES: dict[str, frozenset[str]] = {
    "amx": frozenset({"amx-int8", "amx-tile", "avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avx512vnni": frozenset({"avx512vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avxvnni": frozenset({"avxvnni", "avx2", "fma"}),
    "avx2": frozenset({"avx2", "fma"}),
    "i8mm": frozenset({"i8mm", "dotprod", "neon"}),
    "dotprod": frozenset({"dotprod", "neon"}),
    "generic": frozenset(),
}
# The vectors of a kernel's companions: floating-point products, differences, scores.
VECTORS = {
    "amx": "avx512",
    "avx512vnni": "avx512",
    "avxvnni": "avx2",
    "avx2": "avx2",
    "i8mm": "neon",
    "dotprod": "neon",
    "generic": "generic",
}
# The kernels of 16-bit products that are not called as their companion.
PAIRS = {"amx": "avx512vnni", "i8mm": "neon", "dotprod": "neon"}
NAMES = {
    "amx": "AMX",
    "avx512vnni": "AVX-512 VNNI",
    "avxvnni": "AVX-VNNI",
    "avx2": "AVX2",
    "i8mm": "ARM I8MM",
    "dotprod": "ARM UDOT",
    "generic": "generic",
}
VARIABLE = "GPURBF_CPU_KERNEL"


@functools.cache
def missing(kernel: str) -> str | None:
    """Why this machine cannot run a kernel; None if it can."""
    absent = sorted(FEATURES[kernel] - cpu_features())
    if absent:
        return f"the CPU lacks {', '.join(absent)}"
    if kernel == "amx":
        return amx.permission()
    return None


def choose_kernel() -> tuple[str, str]:
    """The kernel to use, the best that this CPU has, or what ``GPURBF_CPU_KERNEL`` says.

    The second is who said so, empty for the best.

    Raises
    ------
    ValueError
        If the variable names no kernel.
    BackendUnavailable
        If this machine cannot run the kernel it names.
    """
    forced = os.environ.get(VARIABLE, "")
    if forced:
        if forced not in FEATURES:
            raise ValueError(f"{VARIABLE}={forced!r}: use one of {', '.join(FEATURES)}.")
        if why := missing(forced):
            raise BackendUnavailable(f"{VARIABLE}={forced} cannot run here: {why}.")
        return forced, f"{VARIABLE}={forced}"
    best = next(name for name in FEATURES if missing(name) is None)
    return best, ""


def kernel_for(task: str, dtype: Any, kernel: str) -> str:
    """The name of the micro-kernel, of those that go with a kernel of `FEATURES`.

    ``task`` is one of `microkernels`, such as "dot" or "gram"; ``dtype`` that of the numbers,
    uint8 for codes and int16 for fixed point.
    """
    if np.dtype(dtype) == np.int16:  # a CPU with AMX has AVX-512-VNNI too
        return f"{task}16_{PAIRS.get(kernel, kernel)}"
    if np.dtype(dtype) == np.uint8:
        return f"{task}_{kernel if task == 'dot' else VECTORS[kernel]}"
    return f"{task}{8 * np.dtype(dtype).itemsize}_{VECTORS[kernel]}"


def micro_kernel(task: str, dtype: Any) -> Any:
    """The micro-kernel of this CPU, as loops call it; see `kernel_for`."""

    return microkernel_table.kernel(kernel_for(task, dtype, choose_kernel()[0]))
