"""The BNL tile on an NVIDIA GPU, and SVC: Numba kernels, a family a file, scalars as arguments.

packed X, C ─► tile.py ─► H, or H @ W
                 │
                 │  registers.py  a warp's 64 × 32 outputs in registers
                 ├  outputs.py    their way to H or to sums of H @ W
                 │  profiles.py   distance to activation

registers.py  what a thread does to have its outputs: vector loads, products, tensor cores
outputs.py    and what it does with them: terms, activation, stores, sums with weights
profiles.py   all profiles behind one integer argument
tile.py       the tile: shared memory, the loop over the inputs, the consumers
warps.py      what the threads of a block find together
"""
