"""Threads, BLAS threads, settings, stages, errors, compilation: used by all other subpackages."""
