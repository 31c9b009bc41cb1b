"""The CPU: its instructions and its name."""

from __future__ import annotations

import ctypes
import functools
import platform
import subprocess
from contextlib import suppress
from pathlib import Path

from gpurbf.runtime.lazy import lazy_module

jit = lazy_module("gpurbf.runtime.jit")


# ARM features by LLVM's names: Linux reports each as a bit of a word, macOS under a sysctl name.
_ARM_BITS = {"neon": (16, 1), "dotprod": (16, 20), "i8mm": (26, 13)}  # AT_HWCAP, AT_HWCAP2
_ARM_NAMES = {
    "hw.optional.neon": "neon",
    "hw.optional.arm.FEAT_DotProd": "dotprod",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
}


def _arm_features() -> set[str]:
    """Ask the system for an ARM CPU's features, for which micro-kernels are compiled."""
    if platform.system() == "Linux":
        word = ctypes.CDLL(None).getauxval
        word.restype, word.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        return {name for name, (place, bit) in _ARM_BITS.items() if word(place) >> bit & 1}
    if platform.system() == "Darwin":
        call = "/usr/sbin/sysctl", *_ARM_NAMES  # its folder may not be on PATH
        with suppress(OSError):
            said = subprocess.run(call, capture_output=True, text=True, check=False).stdout
            names = {line.partition(":")[0] for line in said.splitlines() if line.endswith("1")}
            return {_ARM_NAMES[name] for name in names}
    return set()


@functools.cache
def cpu_features() -> frozenset[str]:
    """CPU features that the system supports, by LLVM's names; on x86 those that Numba uses too."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return frozenset(_arm_features())
    import llvmlite.binding as llvm

    try:
        host = {name for name, present in llvm.get_host_cpu_features().items() if present}
    except RuntimeError:  # LLVM cannot tell on every system
        return frozenset()
    target = jit.cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return frozenset(host & {name[1:] for name in target if name.startswith("+")})


def processor() -> str:
    """The processor's model name, as well as the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"
