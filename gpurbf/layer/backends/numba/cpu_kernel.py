"""Which micro-kernels the CPU can run, and the one that is used."""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

import numpy as np

from gpurbf.runtime.cpu import cpu_features
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module

amx = lazy_module("gpurbf.layer.backends.numba.amx")
microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")


class CpuKernel(NamedTuple):
    """A kernel of 8-bit products, and the companions that go with it."""

    title: str
    vectors: str  # of floating-point products, differences, scores
    pairs: str  # the kernel of 16-bit products
    features: str  # features of the CPU that it needs


_AVX512 = "avx512vnni avx512f avx512bw avx512vl avx512dq"
# In order of preference.
KERNELS = {
    "amx": CpuKernel("AMX", "avx512", "avx512vnni", f"amx-int8 amx-tile {_AVX512}"),
    "avx512vnni": CpuKernel("AVX-512 VNNI", "avx512", "avx512vnni", _AVX512),
    "avxvnni": CpuKernel("AVX-VNNI", "avx2", "avxvnni", "avxvnni avx2 fma"),
    "avx2": CpuKernel("AVX2", "avx2", "avx2", "avx2 fma"),
    "i8mm": CpuKernel("ARM I8MM", "neon", "neon", "i8mm dotprod neon"),
    "dotprod": CpuKernel("ARM UDOT", "neon", "neon", "dotprod neon"),
    "generic": CpuKernel("generic", "generic", "generic", ""),
}
VARIABLE = "GPURBF_CPU_KERNEL"


@functools.cache
def missing(kernel: str) -> str | None:
    """Why this machine cannot run a kernel; None if it can."""
    absent = sorted(set(KERNELS[kernel].features.split()) - cpu_features())
    if absent:
        return f"the CPU lacks {', '.join(absent)}"
    if kernel == "amx":
        return amx.permission()
    return None


def choose_kernel() -> tuple[str, str]:
    """The kernel to use: the best for this CPU, or the one that ``GPURBF_CPU_KERNEL`` names.

    The second result is the setting that forced the kernel, empty for the best.

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
    return next(name for name in KERNELS if missing(name) is None), ""


def kernel_for(task: str, dtype: Any, kernel: str) -> str:
    """The name of the micro-kernel for a task, among those that go with one of `KERNELS`.

    ``task`` is one of `microkernels`, such as "dot" or "gram"; ``dtype`` that of the numbers,
    uint8 for codes and int16 for fixed point.
    """
    own = KERNELS[kernel]
    if np.dtype(dtype) == np.int16:
        return f"{task}16_{own.pairs}"
    if np.dtype(dtype) == np.uint8:
        return f"{task}_{kernel if task == 'dot' else own.vectors}"
    return f"{task}{8 * np.dtype(dtype).itemsize}_{own.vectors}"


def micro_kernel(task: str, dtype: Any) -> Any:
    """The micro-kernel of this CPU, as loops call it; see `kernel_for`."""

    return microkernel_table.kernel(kernel_for(task, dtype, choose_kernel()[0]))
