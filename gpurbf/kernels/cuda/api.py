"""The one import of numba.cuda: NVIDIA's numba-cuda package where installed, else Numba's own."""

from numba import cuda
from numba.core import config

__all__ = ["SIMULATED", "argument", "cuda", "current_stream"]

# Whether kernels run in Numba's simulator, on NumPy arrays (NUMBA_ENABLE_CUDASIM=1).
SIMULATED = bool(config.ENABLE_CUDASIM)


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
