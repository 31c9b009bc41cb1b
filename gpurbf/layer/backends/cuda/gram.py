"""HᵀH and HᵀT on a GPU, added to sums in float64."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.layer.backends.cuda.memory import Device
from gpurbf.runtime.stages import count, staged


@staged("output training", "HᵀH")
def add_sums(
    xp: ModuleType, device: Device, H: Any, T: Any, weights: Any, mean: Any, G: Any, B: Any
) -> None:
    """Add HᵀH to the lower triangle of G, if any, and HᵀT to B, of H less ``mean``, weighted.

    H (N, m) is overwritten; G and B are float64 and C-contiguous. All memory is taken before the
    sums change. Where float64 is as fast as float32, H is made float64 and cuBLAS adds to G itself;
    elsewhere products of the rows given are float32 and added in float64.
    """
    kind = np.dtype(np.float64) if device.fast_doubles else H.dtype
    root = 1.0 if weights is None else xp.sqrt(weights)[:, None]
    move = _kernel(xp)
    Z = move(H, mean, root, H if H.dtype == kind else xp.empty(H.shape, kind))
    targets = xp.ascontiguousarray(T, kind)
    if weights is not None:
        targets = move(targets, 0.0, root, xp.empty(T.shape, kind))
    products = Z.T @ targets
    if G is not None and Z.size:
        if kind == np.float64:
            xp.cublas.syrk("T", Z, out=G, beta=1.0, lower=True)
        else:
            G += xp.cublas.syrk("T", Z, out=xp.zeros(G.shape, kind), lower=True)
    B += products
    triangle = 0 if G is None else Z.shape[1] + 1
    count(operations=Z.size * (triangle + 2 * T.shape[1]), kind=kind.name)


@functools.cache
def _kernel(xp: ModuleType) -> Any:
    return xp.ElementwiseKernel(
        "T h, R mean, R root", "Z z", "z = (Z(h) - Z(mean)) * Z(root);", "gpurbf_centered"
    )
