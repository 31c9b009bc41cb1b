"""The backends on an NVIDIA GPU: `cupy` (cuBLAS) and `numba-cuda` (tiles); not measured on a GPU."""
