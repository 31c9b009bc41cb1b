"""The one import of numba.cuda, which NVIDIA's package numba-cuda brings."""

import os

from numba import cuda
from numba.core import config

try:
    from numba.cuda.core import config as settings  # numba-cuda has its own
except ImportError:  # without it Numba's own module can be imported, for what the kernels state
    settings = config

# Whether kernels run in Numba's simulator, on NumPy arrays (NUMBA_ENABLE_CUDASIM=1).
SIMULATED = bool(config.ENABLE_CUDASIM)

# Grids of fewer than 128 blocks are what few samples are, and nothing that a user could mend.
if "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS" not in os.environ:
    settings.CUDA_LOW_OCCUPANCY_WARNINGS = 0


def find_compiler():
    """Raise what Numba raises where it does not find what compiles its kernels."""
    from numba.cuda.cudadrv import libs, nvvm

    nvvm.NVVM()
    if not libs.get_libdevice():
        raise FileNotFoundError("no libdevice")


def argument(array):
    """A CuPy array as a kernel's argument.

    Passed as it is, Numba would wait for the stream that the array was made on; all work of a
    backend is on one stream, so there is nothing to wait for.
    """
    return array if SIMULATED else cuda.as_cuda_array(array, sync=False)


def current_stream():
    """CuPy's current stream as Numba launches on it; 0 is the default stream of both."""
    if SIMULATED:
        return 0
    import cupy

    pointer = cupy.cuda.get_current_stream().ptr
    return cuda.external_stream(pointer) if pointer else 0
