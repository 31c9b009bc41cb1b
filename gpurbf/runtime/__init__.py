"""Threads, BLAS threads, settings, stages, errors, compilation: used by every room above."""
