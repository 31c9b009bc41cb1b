"""Numba kernels: one topic a file, scalars as arguments, every function serial and without the GIL.

Each function works on a range of rows; `backends.threads` hands out the ranges. What is chosen at
run time (the product of a CPU, a profile) is called by its address, so that a driver is compiled
and cached once for all of them.

    scalar.py      exp, log, tanh on one number, written so that loops over them become vectors
    activation.py  profiles on a buffer; the pass from a product tile to activations
    llvm.py        what Numba lacks: calls by address, alignment, vector instructions
    compiling.py   a line on stderr while they are compiled
    cuda/          the tiles of an NVIDIA GPU; the rest is for CPUs
"""

from gpurbf.kernels.compiling import announce

announce()
