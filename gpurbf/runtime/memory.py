"""Memory: what is free, what the process takes, what a thread keeps; the refusal of the rest."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

# By the controllers in /proc/self/cgroup: the folder of the groups, the files that state the limit
# and the use of memory, and the entry of memory.stat for cached file data.
_GROUPS = {
    "": ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}


# Memory for kernels that a thread keeps, bytes; what needs more has many inputs and takes longer.
_MOST_KEPT = 1 << 22


class _Scratch(threading.local):
    """Memory of a thread, and the address of its first cache line."""

    kept = np.empty(0, np.uint8), 0


_scratch = _Scratch()


def scratch(n_bytes: int) -> tuple[np.ndarray, int]:
    """Memory of this thread for one call of a kernel, and where n_bytes from a cache line on begin.

    The next calls get the same memory: to allocate it for each item of work takes as long as all
    else that Python does for the item. Hold the array until the kernel has returned.
    """
    if n_bytes + 64 <= len(_scratch.kept[0]):
        return _scratch.kept
    memory = np.empty(n_bytes + 64, np.uint8)
    found = memory, memory.ctypes.data + -memory.ctypes.data % 64
    if n_bytes <= _MOST_KEPT:
        _scratch.kept = found
    return found


def check_room(n_bytes: int, what: str, cure: str) -> None:
    """Refuse work that needs more memory than is free, before the system kills the process.

    Raises
    ------
    MemoryError
        If Linux reports less free memory than `n_bytes`; nothing has been allocated then. Other
        systems are not checked.
    """
    if n_bytes > 1 << 26 and n_bytes > (free := free_bytes(swap=True)):
        taken = f"{what} would take {n_bytes / 1e9:,.1f} GB"
        raise MemoryError(f"{taken}, but only {free / 1e9:,.1f} GB are free: {cure}.")


def check_result(
    shape: tuple[int, int], dtype: np.dtype, what: str, cure: str, copies: int = 1
) -> None:
    """Refuse a result (samples, columns) that does not fit in memory; see `check_room`."""
    N, columns = shape
    n_bytes = copies * N * columns * np.dtype(dtype).itemsize
    check_room(n_bytes, f"The {what} of {N:,} samples ({columns:,} a sample)", cure)


def free_bytes(*, swap: bool = False) -> float:
    """Bytes of memory that are free for the process; infinite where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    numbers_of = {"MemAvailable": "inf", "SwapFree": "0"} | dict(x.split(":", 1) for x in lines)
    names = ("MemAvailable", "SwapFree") if swap else ("MemAvailable",)
    kilobytes = sum(float(numbers_of[name].split()[0]) for name in names)
    return min(1024.0 * kilobytes, _bytes_of_groups())


def _bytes_of_groups() -> float:
    """Bytes left within the limits of the process's control groups, which containers use."""
    least = float("inf")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return least
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in _GROUPS:
            continue
        mounted, limit, use, cache = _GROUPS[controllers]
        own = Path(mounted, path.lstrip("/"))
        # Inside a container, its group is at the mount point, whatever its path outside is.
        for group in (own, *own.parents):
            # There is no such group, or "max": no limit; or its files have other lines.
            with suppress(OSError, ValueError, KeyError):
                most, used = (int((group / name).read_text()) for name in (limit, use))
                parts = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
                # Cached file data are dropped when memory is needed.
                least = min(least, max(0, most - used + int(parts[cache])))
    return least


def resident_bytes() -> int:
    """The process's resident set; 0 if the system does not tell."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0


def physical_bytes() -> int:
    """Bytes of the machine's memory; 0 where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
