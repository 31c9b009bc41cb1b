"""The backends by matrix product on a CPU: `numpy` and `mkl`."""
