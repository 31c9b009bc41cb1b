"""Facts of this machine: hardware, backends, versions; for `info` and benchmark pages."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from threadpoolctl import threadpool_info

from gpurbf import __version__
from gpurbf.layer.backends import LOADERS, get_backend
from gpurbf.layer.backends.cuda import check
from gpurbf.layer.backends.numba.cpu_kernel import FEATURES, choose_kernel, missing
from gpurbf.runtime.cpu import cpu_features, processor
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.threads import thread_limit

_DISTRIBUTIONS = (
    "numpy",
    "scipy",
    "scikit-learn",
    "scikit-learn-intelex",
    "numba",
    "llvmlite",
    "mkl",
    "joblib",
    "threadpoolctl",
    "numba-cuda",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "matplotlib",
)

# What OpenBLAS calls its kernels of 256 bits.
_WITHOUT_AVX512 = {"Haswell", "Zen"}

# What can speed up products and exponentials, in LLVM's names.
_FEATURES = {
    "x86": (
        "amx-int8",
        "amx-bf16",
        "avx512vnni",
        "avx512bf16",
        "avxvnni",
        "avx512f",
        "avx2",
        "fma",
    ),
    "arm": ("sme", "sve", "i8mm", "bf16", "dotprod", "neon"),
}


def hardware() -> dict[str, str]:
    """Processor, its matrix features, the kernel they allow, threads and memory."""
    facts = {
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "processor": processor(),
        "matrix features": _features(),
        "CPU kernel": _kernel(),
        "threads": f"{thread_limit()} used of {os.cpu_count()} logical processors",
    }
    if size := memory():
        facts["memory"] = f"{size / 2**30:.0f} GB"
    if blas := _blas():
        facts["BLAS"] = blas
    return facts


def _blas() -> str:
    """The libraries that NumPy and SciPy brought, and the CPUs that they take this one for."""
    import scipy.linalg  # noqa: F401 - it brings its own

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


def memory() -> int:
    """Bytes of physical memory; 0 where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def backends() -> dict[str, str]:
    """Each backend with its kernel, or why it is not available; then what auto takes."""
    report = {}
    for name in (*LOADERS, "auto"):
        try:
            backend, reason = get_backend(name)
        except (BackendUnavailable, ValueError) as error:  # a variable may name what is not there
            report[name] = str(error)
        else:
            report[name] = f"available: {backend.kernel}"
            if backend.device and (verdict := check.kept(name)):
                report[name] += f"; {verdict.said}"
            if name == "auto":
                report[name] = f"{backend.name} ({reason})"
    return report


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what is installed of those it can use."""
    found = {"python": platform.python_version(), "gpurbf": __version__}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _features() -> str:
    """Which of the interesting features the processor has, and which it lacks."""
    has = cpu_features()
    family = "arm" if platform.machine().lower() in ("aarch64", "arm64") else "x86"
    present = ", ".join(name for name in _FEATURES[family] if name in has) or "none"
    absent = ", ".join(name for name in _FEATURES[family] if name not in has) or "none"
    return f"{present} (absent: {absent})"


def _kernel() -> str:
    """The kernel of the `numba` backend, why, and which others would run."""
    try:
        kernel, forced = choose_kernel()
    except (BackendUnavailable, ValueError) as error:
        return str(error)
    others = [name for name in FEATURES if name != kernel and missing(name) is None]
    said = forced or "the best that this CPU has"
    return f"{kernel}: {said}; would run too: {', '.join(others) or 'none'}"
