"""The BNL tile on an NVIDIA GPU, and SVC: Numba kernels, one file per family, scalars as arguments.

packed X, C ─► tile.py ─► H, or H @ W
                 │
                 │  registers.py  a warp's 64 × 32 outputs in registers
                 ├  outputs.py    their way to H or to sums of H @ W
                 │  profiles.py   distance to activation

registers.py  how a thread computes its outputs: vector loads, products, tensor cores
outputs.py    and what it does with them: terms, activation, stores, sums with weights
profiles.py   all profiles behind one integer argument
tile.py       the tile: shared memory, the loop over the inputs, the consumers
warps.py      the largest numbers among the threads of a block
"""
