"""The `numba` backend's layer of samples and centers that are rows of one array, not copied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import Indexed
from gpurbf.layer.backends.numba import backend, matvec, packed
from gpurbf.layer.distance import ALL


def like(
    X: np.ndarray, activation: Activation, dtype: Any, quantization: Quantization | None
) -> tuple[packed.PackedCenters, np.ndarray] | None:
    """What `prepare` makes operands of; None if their inputs come in several parts."""
    operand = packed.prepare(X[:1], activation, dtype, quantization, among=X)
    return packed.shifted(operand, X) if operand.fused else None


def prepare(
    operand: packed.PackedCenters,
    X: np.ndarray,
    chosen: np.ndarray,
    fresh: slice | None = None,
) -> packed.PackedCenters:
    """The operand with X[chosen] for centers, shifted as its own.

    The operand itself, renewed in place, if none but the fresh ones are others than they were.
    """
    if fresh is not None and packed.renew(
        operand.parts[0], packed.taken(X, operand.exact), chosen, fresh
    ):
        return operand
    part = packed.with_centers(operand.parts[0], packed.taken(X, operand.exact), chosen)
    return replace(operand, parts=(part,), m=len(chosen))


def outputs(
    operand: packed.PackedCenters,
    X: np.ndarray,
    chosen: np.ndarray,
    out: np.ndarray,
    places: np.ndarray | None = None,
) -> None:
    """H of X[chosen], written into `out`, or into those rows of it."""
    if len(chosen):
        store = matvec.consumer(
            out.dtype, "store", out=out, places=ALL if places is None else places
        )
        backend.run(operand, operand.parts[0], packed.taken(X, operand.exact), store, chosen)


INDEXED = Indexed(like, prepare, outputs)
