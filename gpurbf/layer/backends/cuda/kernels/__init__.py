"""The BNL tile on an NVIDIA GPU, and SVC: Numba kernels, a family a file, scalars as arguments.

X, C ─► pack.py ─► rows of whole 64-byte slices, norms ─► tile.py ─► H, or H @ W
                                                            │
        registers.py  a warp's 64 × 32 outputs in registers ┤
        outputs.py    their way to H or to sums of H @ W    ┤
        profiles.py   distance to activation ───────────────┘

api.py        the only import of numba.cuda; how a CuPy array becomes an argument
pack.py       shift, convert and pad rows, once per operand
registers.py  what a thread does to have its outputs: vector loads, products, tensor cores
outputs.py    and what it does with them: terms, activation, stores, sums with weights
wgmma.py      the tensor cores of Hopper, which four warps use together
simulated.py  the same in NumPy, where Numba's simulator runs the kernels
profiles.py   all profiles behind one integer argument
tile.py       the tile: shared memory, the loop over the inputs, the consumers
pairs.py      one thread a pair, as in the paper: the benchmark's baseline

smo.py        SVC's steps, a block a pair of classes, beside and without the tile
warps.py      what the threads of a block find together
"""
