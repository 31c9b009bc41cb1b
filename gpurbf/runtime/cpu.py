"""The CPU: its instructions, its name, its cores and caches."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

from gpurbf.runtime.lazy import lazy_module

jit = lazy_module("gpurbf.runtime.jit")


@functools.cache
def cpu_features() -> frozenset[str]:
    """Features that the CPU has, its system saves and Numba compiles for, in LLVM's names."""
    import llvmlite.binding as llvm

    try:
        host = {name for name, present in llvm.get_host_cpu_features().items() if present}
    except RuntimeError:  # LLVM cannot tell on every system
        return frozenset()
    target = jit.cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return frozenset(host & {name[1:] for name in target if name.startswith("+")})


def processor() -> str:
    """The processor's model name, as well as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "unknown"


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
