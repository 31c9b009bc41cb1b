"""Threads, BLAS threads, settings, stages, errors and compilation: what every room above stands on."""
