"""Threads, BLAS threads, settings, stages, errors, compilation: used by every subpackage above."""
