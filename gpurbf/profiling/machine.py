"""This machine: its hardware, backends, versions and measured peak rates."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from gpurbf import __version__
from gpurbf.layer.backends import LOADERS, get_backend
from gpurbf.layer.backends.cuda import check
from gpurbf.layer.backends.numba.cpu_kernel import KERNELS, choose_kernel, kernel_for, missing
from gpurbf.runtime.cpu import cpu_features, processor
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.memory import physical_bytes
from gpurbf.runtime.stages import best_seconds
from gpurbf.runtime.threads import parallel_for, parallel_rows, thread_limit

microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")
peak_kernels = lazy_module("gpurbf.profiling._peak_kernels")

_DISTRIBUTIONS = (
    "numpy scipy scikit-learn scikit-learn-intelex numba llvmlite mkl joblib threadpoolctl "
    "numba-cuda cupy-cuda12x cupy-cuda13x matplotlib"
).split()

# OpenBLAS's names of its kernels for 256-bit vectors.
_WITHOUT_AVX512 = {"Haswell", "Zen"}

# CPU features that can speed up products and exponentials, by LLVM's names.
_FEATURES = {
    "x86": "amx-int8 amx-bf16 avx512vnni avx512bf16 avxvnni avx512f avx2 fma".split(),
    "arm": "sme sve i8mm bf16 dotprod neon".split(),
}

# Numbers in each of two float32 arrays, which must not fit in the caches.
_NUMBERS = 1 << 25
_RUNS = 20
# Matrices count as large if their product takes this long.
_SECONDS = 0.05
# Number of runs of a loop over registers, and the seconds that each should take.
_PEAK_RUNS, _PEAK_SECONDS = 40, 0.02


def hardware() -> dict[str, str]:
    """Processor, its matrix features, the kernel they allow, threads and memory."""
    facts = {
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "processor": processor(),
        "matrix features": _features(),
        "CPU kernel": _kernel(),
        "threads": f"{thread_limit()} used of {os.cpu_count()} logical processors",
    }
    if size := physical_bytes():
        facts["memory"] = f"{size / 2**30:.0f} GB"
    if blas := _blas():
        facts["BLAS"] = blas
    return facts


def _blas() -> str:
    """The BLAS libraries of NumPy and SciPy, and the CPU type that each has detected."""
    import scipy.linalg  # noqa: F401 - it loads its own BLAS

    found = {
        (library["internal_api"], library["version"] or "", library.get("architecture") or "")
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }
    said = [f"{name} {version}, kernels for {cpu or 'any CPU'}" for name, version, cpu in found]
    advice = ""
    if {cpu for *_, cpu in found} & _WITHOUT_AVX512 and "avx512f" in cpu_features():
        advice = "; this CPU has AVX-512: try OPENBLAS_CORETYPE=SkylakeX"
    return "; ".join(sorted(said)) + advice


def backends() -> dict[str, str]:
    """Each backend with its kernel, or why it is not available; then the choice of "auto"."""
    report = {}
    for name in (*LOADERS, "auto"):
        try:
            backend, reason = get_backend(name)
        except (BackendUnavailable, ValueError) as error:  # a variable may name a missing one
            report[name] = str(error)
        else:
            report[name] = f"available: {backend.kernel}"
            if backend.device and (verdict := check.kept(name)):
                report[name] += f"; {verdict.said}"
            if name == "auto":
                report[name] = f"{backend.name} ({reason})"
    return report


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the installed libraries that it can use."""
    found = {"python": platform.python_version(), "gpurbf": __version__}
    for name in _DISTRIBUTIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _features() -> str:
    """Which of the interesting features the processor has, and which it lacks."""
    has = cpu_features()
    family = "arm" if platform.machine().lower() in ("aarch64", "arm64") else "x86"
    present, absent = (
        ", ".join(name for name in _FEATURES[family] if (name in has) == there) or "none"
        for there in (True, False)
    )
    return f"{present} (absent: {absent})"


def _kernel() -> str:
    """The kernel of the `numba` backend, why, and which others would run."""
    try:
        kernel, forced = choose_kernel()
    except (BackendUnavailable, ValueError) as error:
        return str(error)
    others = [name for name in KERNELS if name != kernel and missing(name) is None]
    said = forced or "the best that this CPU has"
    return f"{kernel}: {said}; would run too: {', '.join(others) or 'none'}"


@functools.cache
def compute(kind: str, xp: ModuleType = np) -> float | None:
    """Operations a second of a kind of arithmetic such as ``"float32"``, on all threads.

    On a CPU this is the rate of the instructions of the package's own kernel, on registers only. If
    that kernel has no such loop, and on the device of another array library, it is the rate of a
    product of large matrices. None if neither is known.
    """
    if xp is np:
        kernel = choose_kernel()[0]
        tasks = itertools.product(("dot", "manhattan"), ("uint8", "float32", "float64"))
        for task, dtype in (*tasks, ("gram", "int16")):
            name = kernel_for(task, dtype, kernel)
            own = microkernel_table.KINDS[name].operation.arithmetic == kind
            if own and not name.endswith("_generic"):  # the generic kernels have no such loop
                return peak(name)
    return product_rate(kind, xp) if kind in ("float32", "float64") else None


@functools.cache
def bandwidth(xp: ModuleType = np) -> float:
    """Bytes a second, read and written, by the array library in STREAM's test "scale" [1]_.

    A copy by the C library may be slower, because it uses other instructions.

    References
    ----------
    .. [1] J. D. McCalpin, "Memory bandwidth and machine balance in current high performance
       computers", IEEE TCCA Newsletter, 1995.
    """
    return scale_rate(xp.multiply, xp)


def scale_rate(multiply: Callable[[Any, Any, Any], Any], xp: ModuleType = np) -> float:
    """Bytes a second of ``multiply(array, number, result)`` on arrays larger than the caches."""
    source, target = xp.ones(_NUMBERS, xp.float32), xp.zeros(_NUMBERS, xp.float32)
    # On a GPU a launch takes about as long as this little work, so 16 are timed together.
    n, calls = (thread_limit(), 1) if xp is np else (1, 16)

    def scale(part: slice) -> None:
        multiply(source[part], xp.float32(3), target[part])

    def work() -> None:
        for _ in range(calls):
            parallel_rows(scale, _NUMBERS, -(-_NUMBERS // n))

    return calls * (source.nbytes + target.nbytes) / best_seconds(work, _RUNS)


def product_rate(dtype: str, xp: ModuleType = np, runs: int = _RUNS) -> float:
    """Operations a second of the array library's own product of large matrices."""
    n, seconds = 512, 0.0
    while seconds < _SECONDS:
        n *= 2
        A = xp.ones((n, n), dtype)
        product = functools.partial(xp.matmul, A, A, out=xp.empty_like(A))
        seconds = best_seconds(product, 2)
    return 2 * n**3 / best_seconds(product, runs)


def peak(name: str) -> float:
    """Operations a second of all threads together for a kernel such as ``"dot_avx512vnni"``.

    A multiplication and its addition, or a difference and its addition, count as two. The rate is
    the best of many short runs, since other programs may disturb some of them.
    """
    n_threads, steps = thread_limit(), 100_000

    def run() -> None:
        parallel_for(lambda thread: peak_kernels.run(name, steps), n_threads)

    steps = max(steps, int(steps * _PEAK_SECONDS / best_seconds(run, 2)))  # the first one compiles
    return n_threads * steps * peak_kernels.operations_a_step(name) / best_seconds(run, _PEAK_RUNS)
