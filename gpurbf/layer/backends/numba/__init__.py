"""The `numba` backend: tiles on CPU threads, and the kernels that others use, too.

tile_layer.py        the backend: centers packed for its micro-kernels
driver.py            rows packed, products by strips of centers, activated, consumed in cache
microkernels.py      a block of rows × centers in vector registers; microkernel_table.py: by name
packing.py           operands in the order in which micro-kernels read them;  amx.py: Intel AMX
consumers.py         what is done with the tiles: H stored, H @ W, HᵀH
matvec.py, matvec_kernels.py        H @ W, sums in float64
gram.py, gram_kernels.py            HᵀH and HᵀT, exact in 16 bits
activation_kernels.py, scalar_math.py   from distances to activations
cpu_kernel.py        which micro-kernels this CPU runs
"""
