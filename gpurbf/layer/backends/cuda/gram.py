"""HᵀH and HᵀT on a GPU, added to sums in float64."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.layer.backends.cuda.memory import Device


def add_sums(
    xp: ModuleType, device: Device, H: Any, T: Any, weights: Any, mean: Any, G: Any, B: Any
) -> None:
    """Add HᵀH to the lower triangle of G, if any, and HᵀT to B, of H less ``mean``, weighted.

    H (N, m) is overwritten; G and B are float64 and C-contiguous. All memory is taken before the
    sums change. Where float64 is as fast as float32, H is made float64 and cuBLAS adds to the sums
    itself; elsewhere products of the rows given are float32 and added in float64.
    """
    kind = np.dtype(np.float64) if device.fast_doubles else H.dtype
    root = 1.0 if weights is None else xp.sqrt(weights)[:, None]
    move = _kernel(xp)
    Z = move(H, mean, root, H if H.dtype == kind else xp.empty(H.shape, kind))
    targets = xp.ascontiguousarray(T, kind)
    if weights is not None:
        targets = move(targets, 0.0, root, xp.empty(T.shape, kind))
    if kind == np.float64:
        if G is not None:
            _syrk(xp, Z, G, add=True)
        _transposed_times(xp, Z, targets, B)
        return
    squares = None if G is None else xp.zeros(G.shape, kind)
    products = Z.T @ targets
    if squares is not None:
        _syrk(xp, Z, squares)
        G += squares
    B += products


@functools.cache
def _kernel(xp: ModuleType) -> Any:
    return xp.ElementwiseKernel(
        "T h, R mean, R root", "Z z", "z = (Z(h) - Z(mean)) * Z(root);", "gpurbf_centered"
    )


def _syrk(xp: ModuleType, H: Any, G: Any, add: bool = False) -> None:
    """The lower triangle of G (m, m) = HᵀH, or G + HᵀH."""
    (N, m), cublas = H.shape, xp.cuda.cublas
    if not (N and m):
        return
    syrk = cublas.ssyrk if H.dtype == np.float32 else cublas.dsyrk
    one, beta = np.array(1, H.dtype), np.array(float(add), H.dtype)
    # Rows first, H is seen as its transpose and an upper triangle as the lower one.
    syrk(
        xp.cuda.device.get_cublas_handle(), cublas.CUBLAS_FILL_MODE_UPPER, cublas.CUBLAS_OP_N,
        m, N, one.ctypes.data, H.data.ptr, m, beta.ctypes.data, G.data.ptr, m,
    )  # fmt: skip


def _transposed_times(xp: ModuleType, H: Any, T: Any, B: Any) -> None:
    """B (m, k) += HᵀT in float64; cuBLAS sees all of them transposed."""
    (N, m), k, cublas = H.shape, T.shape[1], xp.cuda.cublas
    if not (N and m and k):
        return
    one = np.array(1.0)
    cublas.dgemm(
        xp.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T, k, m, N,
        one.ctypes.data, T.data.ptr, k, H.data.ptr, m, one.ctypes.data, B.data.ptr, k,
    )  # fmt: skip
