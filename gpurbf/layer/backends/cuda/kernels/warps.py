"""Largest numbers among the threads of a block; in Numba's simulator a warp is one thread.

Keys of 64 bits are compared by their upper halves, as 32-bit keys, and by the lower halves if these
tie: a warp finds the largest of 32 such numbers with one instruction (redux, compute capability
8.0), or else with five exchanges of one word.
"""

import numpy as np

from gpurbf.runtime.jit.cuda_api import SIMULATED, cuda, jit

WARPS = 32  # of a block, at most
_LOWEST, _SMALLEST, _HALF = np.int64(-(2**63)), np.int32(-(2**31)), np.int64(2**31)

if SIMULATED:
    WARP = 1

    def product(a, b):
        """A rounded product, not fused with a sum by the compiler: a CPU does not fuse them."""
        return a * b

    def _largest(x):
        return x
else:
    from numba.cuda.libdevice import dmul_rn as product  # type: ignore[no-redef] # noqa: F401

    from gpurbf.layer.backends.cuda.kernels.registers import largest as _largest

    WARP = 32


@jit(device=True)
def _of_warp(key):
    """The largest key of a warp."""
    upper = np.int32(key >> 32)
    top = _largest(upper)
    # As a signed number the lower half is ordered once half of its range is taken off.
    lower = np.int32((key & 0xFFFFFFFF) - _HALF)
    lower = _largest(lower if upper == top else _SMALLEST)
    return np.int64((np.int64(top) << 32) + (np.int64(lower) + _HALF))


@jit(device=True)
def _best_of_warp(key, place):
    """The largest key of a warp, and the last of its places."""
    top = _of_warp(key)
    return top, _largest(np.int32(place) if key == top else _SMALLEST)


@jit(device=True)
def best(keys, places, key, place):
    """The largest key of the block's threads, and the largest place (int32) of those that have it.

    This is a barrier for all threads. The shared arrays (`WARPS`,) may be written again after the
    next barrier.
    """
    key, place = _best_of_warp(key, place)
    lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
    if lane == 0:
        keys[warp], places[warp] = key, place
    cuda.syncthreads()
    key, place = _LOWEST, _SMALLEST
    for w in range(lane, cuda.blockDim.x // WARP, WARP):  # at most one step if WARP is 32
        if keys[w] > key or (keys[w] == key and places[w] > place):
            key, place = keys[w], places[w]
    return _best_of_warp(key, place)


@jit(device=True)
def best_beside(keys, places, others, key, place, other):
    """`best`, and the largest other number, with the same barrier."""
    other = _of_warp(other)
    lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
    if lane == 0:
        others[warp] = other
    key, place = best(keys, places, key, place)
    other = _LOWEST
    for w in range(lane, cuda.blockDim.x // WARP, WARP):
        other = max(other, others[w])
    return key, place, _of_warp(other)
