"""Backends on an NVIDIA GPU: `cupy` (cuBLAS), `numba-cuda` (tiles)."""
