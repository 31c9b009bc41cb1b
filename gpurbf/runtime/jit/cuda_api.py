"""The one import of numba.cuda, which NVIDIA's package numba-cuda brings."""

import contextlib
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

try:
    from numba.cuda.core import config, targetconfig  # numba-cuda has its own
except ImportError:  # without it, Numba's own modules suffice to import the kernels' modules
    from numba.core import config, targetconfig  # noqa: F401

# Whether kernels run in Numba's simulator, on NumPy arrays (NUMBA_ENABLE_CUDASIM=1).
SIMULATED = bool(config.ENABLE_CUDASIM)

# Few samples make grids of fewer than 128 blocks; a user cannot change that.
if "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS" not in os.environ:
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

# NumPy 2.5 has no `row_stack`, which numba-cuda up to 0.30.4 names when it first compiles.
numpy: Any = np
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = np.vstack
    with contextlib.suppress(ImportError):  # Numba's own numba.cuda
        import numba.cuda.np.arrayobj  # noqa: F401
    del numpy.row_stack


def jit(function=None, **options):
    """`cuda.jit` without link-time optimization: a device runs the PTX that `compile_ptx` shows.

    If nvJitLink is installed, numba-cuda would compile to LTO-IR, which tests of the PTX do not
    see. It also ignores ``lto=False`` of a decorator with arguments.
    """
    if function is None:
        return partial(jit, **options)
    if SIMULATED:  # it has no registers
        options.pop("max_registers", None)
    else:
        options["lto"] = False
    return cuda.jit(function, **options)


def find_compiler():
    """Raise Numba's own error if Numba does not find the compiler of its kernels.

    With NVRTC from a wheel, numba-cuda looks for a toolkit's libNVVM only if ``CUDA_HOME`` is set.
    If only this variable is missing, it is set here, to the toolkit of nvcc.
    """
    try:
        _load_compiler()
    except Exception:
        folders = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"])
        nvcc = shutil.which("nvcc", path=folders)
        if nvcc is None or "CUDA_HOME" in os.environ or "CUDA_PATH" in os.environ:
            raise
        os.environ["CUDA_HOME"] = str(Path(nvcc).resolve().parents[1])
        _load_compiler()


def _load_compiler():
    from numba.cuda.cudadrv import libs, nvvm

    nvvm.NVVM()
    if not libs.get_libdevice():
        raise FileNotFoundError("no libdevice")


def argument(array):
    """A CuPy array as a kernel's argument.

    If the array itself were passed, Numba would wait for the stream that it was made on. All work
    of a backend is on one stream, so there is nothing to wait for.
    """
    return cuda.as_cuda_array(array, sync=False)


def current_stream():
    """CuPy's current stream as Numba launches on it; 0 is the default stream."""
    import cupy

    pointer = cupy.cuda.get_current_stream().ptr
    return cuda.external_stream(pointer) if pointer else 0
