"""The CPU's matrix and vector features, and which of the kernels they allow."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from gpurbf.backends import BackendUnavailable

# In order of preference; a kernel needs all of its features.
FEATURES: dict[str, frozenset[str]] = {
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

    from gpurbf.kernels import cpu_target

    try:
        host = {name for name, present in llvm.get_host_cpu_features().items() if present}
    except RuntimeError:  # LLVM cannot tell on every system
        return frozenset()
    target = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return frozenset(host & {name[1:] for name in target if name.startswith("+")})


@functools.cache
def missing(kernel: str) -> str | None:
    """Why this machine cannot run a kernel; None if it can."""
    absent = sorted(FEATURES[kernel] - cpu_features())
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
        if forced not in FEATURES:
            raise ValueError(f"{VARIABLE}={forced!r}: use one of {', '.join(FEATURES)}.")
        if why := missing(forced):
            raise BackendUnavailable(f"{VARIABLE}={forced} cannot run here: {why}.")
        return forced, f"{VARIABLE}={forced}"
    best = next(name for name in FEATURES if missing(name) is None)
    return best, "the best that this CPU has"


def kernel_for(task: str, dtype: Any, kernel: str) -> str:
    """The name of the micro-kernel, of those that go with a kernel of `FEATURES`.

    ``task`` is one of `kernels.tiles`, such as "dot" or "gram"; ``dtype`` that of the numbers,
    uint8 for codes and int16 for fixed point.
    """
    if np.dtype(dtype) == np.int16:  # a CPU with AMX has AVX-512-VNNI too
        return f"{task}16_{'avx512vnni' if kernel == 'amx' else kernel}"
    if np.dtype(dtype) == np.uint8:
        return f"{task}_{kernel if task == 'dot' else VECTORS[kernel]}"
    return f"{task}{8 * np.dtype(dtype).itemsize}_{VECTORS[kernel]}"


def micro_kernel(task: str, dtype: Any) -> Any:
    """What loops need to call the micro-kernel of this CPU; see `kernel_for`."""
    from gpurbf.kernels import products

    return products.kernel(kernel_for(task, dtype, choose_kernel()[0]))


def processor() -> str:
    """The processor's model name, as well as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "unknown"


def device() -> str:
    """All of the CPU that the best tile depends on: model, cores, caches, features, kernel."""
    try:
        return _device(choose_kernel()[0])
    except (BackendUnavailable, ValueError):  # said where the kernel is needed
        return _device("none")


@functools.cache
def _device(kernel: str) -> str:
    features = ",".join(sorted(cpu_features() & frozenset().union(*FEATURES.values())))
    caches = ", ".join(f"L{level} {cache_bytes(level, 0) >> 10} KiB" for level in (2, 3))
    cores = f"{os.cpu_count()} logical processors"
    return f"{processor()}, {cores}, {caches}, {features}, kernel {kernel}"


@functools.cache
def cores() -> int | None:
    """How many cores there are, where Linux tells that each runs several threads; else None."""
    try:
        mask = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings").read_text()
        siblings = int(mask.replace(",", ""), 16).bit_count()
    except (OSError, ValueError):
        return None
    return (os.cpu_count() or 1) // siblings if siblings > 1 else None


@functools.cache
def cache_bytes(level: int, unknown: int) -> int:
    """Size of a core's cache of that level (2 or 3), where Linux tells it; else ``unknown``."""
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if int((index / "level").read_text()) == level:
                return int((index / "size").read_text().strip().removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return unknown
