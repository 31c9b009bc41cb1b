"""The least array library of the array API standard: neither NumPy's nor CuPy's, with devices."""

import sys

import numpy as np

float64 = "elsewhere.float64"


class Array:
    """An array that gives itself away to NumPy only when asked for it."""

    def __init__(self, there, device):
        self.there, self.device = there, device

    shape = property(lambda self: self.there.shape)
    ndim = property(lambda self: len(self.there.shape))
    dtype = property(lambda self: f"elsewhere.{self.there.dtype}")

    def __len__(self):
        return len(self.there)

    def __array_namespace__(self, api_version=None):
        return sys.modules[__name__]

    def __array__(self, dtype=None, copy=None):
        return np.array(self.there, dtype)


class OnGpu(Array):
    """An array in a GPU's memory: CuPy's array inside."""

    __cuda_array_interface__ = property(lambda self: self.there.__cuda_array_interface__)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert a GPU's array to NumPy")


def asarray(values, device="host"):
    """NumPy's values, there."""
    return Array(np.array(values), device)


def from_dlpack(values):
    """CuPy's array, in place."""
    return OnGpu(values, "gpu")
