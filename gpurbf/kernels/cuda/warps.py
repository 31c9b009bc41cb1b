"""What the threads of a block find together; in Numba's simulator a warp is one thread."""

from gpurbf.kernels.cuda.api import SIMULATED, cuda

__all__ = ["WARPS", "best", "product"]

WARPS = 32  # of a block, at most

if SIMULATED:
    WARP = 1

    def product(a, b):
        """A rounded product: what the compiler would join with a sum is not what a CPU does."""
        return a * b

    def _of_warp(key, place, other):
        return key, place, other
else:
    from numba.cuda.libdevice import dmul_rn as product  # type: ignore[no-redef]

    WARP = 32

    @cuda.jit(device=True)
    def _of_warp(key, place, other):
        step = 16
        while step:
            key_there = cuda.shfl_xor_sync(0xFFFFFFFF, key, step)
            place_there = cuda.shfl_xor_sync(0xFFFFFFFF, place, step)
            if key_there > key or (key_there == key and place_there > place):
                key, place = key_there, place_there
            other = max(other, cuda.shfl_xor_sync(0xFFFFFFFF, other, step))
            step //= 2
        return key, place, other


@cuda.jit(device=True)
def best(keys, places, others, key, place, other):
    """The largest key of the block's threads, the last of its places, and the largest other number.

    A barrier for all threads. The shared arrays (`WARPS`,) may be written again after the next one.
    """
    key, place, other = _of_warp(key, place, other)
    warp = cuda.threadIdx.x // WARP
    if cuda.threadIdx.x % WARP == 0:
        keys[warp], places[warp], others[warp] = key, place, other
    cuda.syncthreads()
    for w in range(cuda.blockDim.x // WARP):
        if keys[w] > key or (keys[w] == key and places[w] > place):
            key, place = keys[w], places[w]
        other = max(other, others[w])
    return key, place, other
