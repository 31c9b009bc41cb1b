"""Numba kernels: one topic a file, scalars as arguments, every function serial and without the GIL.

Each function works on a range of rows; `backends.threads` hands out the ranges. What is chosen at
run time (the product of a CPU, a profile) is called by its address, so that a driver is compiled
and cached once for all of them.

    layer.py       the tile driver: packs rows, calls a micro-kernel, activates, hands to a consumer
    consumers.py   who takes the tiles: H stored, H @ W summed, H packed for HᵀH
    packing.py     operands in the order in which the micro-kernels read them
    tiles.py       the micro-kernels: tables of what they are, one builder for all of them
    amx.py         the one that is different; scores.py: those of H @ W; gram.py: HᵀH
    products.py    all of them by name: layout, address
    activation.py  profiles on a buffer; the pass from a product tile to activations
    epilogue.py    the numbers of that pass, which a GPU shares
    sparse.py      products of CSR rows with CSC centers
    moments.py     sums of bytes and of their squares; hashes.py: of a row's bits
    scalar.py      exp, log, tanh on one number, written so that loops over them become vectors
    llvm.py        what Numba lacks: calls by address, alignment, vector instructions
    compiling.py   a line on stderr while they are compiled; caching.py: where they are kept
    collecting.py  no garbage collection meanwhile
    cuda/          the tiles of an NVIDIA GPU; the rest is for CPUs
"""

from gpurbf.runtime.jit.collecting import without_collecting
from gpurbf.runtime.jit.compiling import announce

__all__ = ["cpu_target", "numba"]


with without_collecting():
    import numba
    from numba.core.registry import cpu_target

announce()
