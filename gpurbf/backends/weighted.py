"""H @ W on the CPU with sums in float64, the same for a row whatever other rows there are.

A BLAS gives a row other last bits in a batch of another size, at another place in it, or with
another number of threads (float32 with OpenBLAS, measured). The tiles' own kernels do not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from gpurbf._stages import count, stage
from gpurbf.backends import cpu
from gpurbf.backends.threads import parallel_for

__all__ = ["Weights", "pack_weights", "row_products", "times"]

_ROWS = 192
# Outputs that a plain loop is fast enough for.
_FEW = 3
# Multiplications that take longer than it takes to wake a thread.
_WORTH_A_THREAD = 1 << 20


class Weights(NamedTuple):
    """Output weights W (m, k) packed for a kernel that takes few of them or many."""

    name: str  # of its consumer
    sums: int  # that a row keeps from tile to tile
    W: np.ndarray
    kernel: int  # its address, and its rows and outputs
    rows: int
    outputs: int
    k: int

    def consumer(self, scores: np.ndarray, dtype: np.dtype) -> Any:
        """Who adds to the float64 sums ``scores`` (N, k), for activations of that dtype."""
        own = {"W": self.W, "kernel": self.kernel, "rows": self.rows, "outputs": self.outputs}
        return consumer(dtype, self.name, scores=scores, sums=self.sums, **own)


def consumer(dtype: Any, name: str, **given: Any) -> Any:
    """A `consumers.Consumer` of activations of that dtype, of that name.

    What it is not given is empty: consumers of one dtype have one type, for which the driver is
    compiled once.
    """
    from gpurbf.kernels.consumers import Consumer, consumer_address

    dtype = np.dtype(dtype)
    return Consumer(**_absent(dtype) | given, address=consumer_address(name, dtype))


@cache
def _absent(of: np.dtype) -> dict[str, np.ndarray]:
    """What a consumer of activations of that dtype is not given; nobody writes to nothing."""
    return {
        "out": np.empty((0, 0), of),
        "places": np.empty(0, np.intp),
        "weights": np.empty(0, of),
        "mean": np.empty(0, of),
        "panels": np.empty((0, 0, 16), of),
        "wide": np.empty((0, 0, 16)),
        "pairs": np.empty((0, 0, 16), np.int32),
        "beyond": np.empty(0, np.uint8),
        "scores": np.empty((0, 0)),
        "W": np.empty((0, 0, 0), np.uint8),
    }


def pack_weights(W: np.ndarray, dtype: np.dtype, vectors: str) -> Weights:
    """W (m, k) for activations of that dtype and kernels with those vectors."""
    from gpurbf.kernels import packing, products
    from gpurbf.kernels.scores import PARTS
    from gpurbf.kernels.tiles import LANES

    k = W.shape[1]
    few = k < LANES
    name = f"{'single' if k < 3 else 'partial' if few else 'score'}{8 * dtype.itemsize}_{vectors}"
    layout = products.product(name)
    packed = packing.pack_few(W, layout.panels) if few else packing.pack_many(W, dtype)
    return Weights(
        name="partial" if few else "scores",
        sums=PARTS * packed.shape[1] if few else LANES,
        W=packed.view(np.uint8),
        kernel=products.address(name),
        rows=layout.rows,
        outputs=layout.panels,
        k=k,
    )


def times(W: np.ndarray, dtype: np.dtype) -> Callable[[np.ndarray, np.ndarray], None]:
    """A function of H (N, m) and S (N, k) that writes H @ W into S, for C-contiguous H."""
    dtype = np.dtype(dtype)
    if W.shape[1] <= _FEW:
        return partial(_multiply_few, np.ascontiguousarray(W.T, np.float64))
    return partial(_multiply, pack_weights(W, dtype, cpu.VECTORS[cpu.choose_kernel()[0]]))


def row_products(H: np.ndarray, W: np.ndarray) -> np.ndarray:
    """H @ W in float64, for H of any dtype."""
    S, wide = np.empty((len(H), W.shape[1])), np.dtype(np.float64)
    # The loop for a few outputs reads all dtypes.
    times(W, wide)(np.ascontiguousarray(H, None if W.shape[1] <= _FEW else wide), S)
    return S


def _multiply_few(W: np.ndarray, H: np.ndarray, S: np.ndarray) -> None:
    from gpurbf.kernels import stored

    sums = np.zeros(S.shape)
    _rows(lambda begin, end: stored.dot_rows(begin, end, H, W, sums), H, S, sums, W.nbytes)


def _multiply(weights: Weights, H: np.ndarray, S: np.ndarray) -> None:
    from gpurbf.kernels import stored

    sums = np.zeros(S.shape)
    consumer = tuple(weights.consumer(sums, H.dtype))
    _rows(
        lambda begin, end: stored.stored_rows(begin, end, H, consumer),
        H, S, sums, weights.W.nbytes,
    )  # fmt: skip


def _rows(
    add: Callable[[int, int], None], H: np.ndarray, S: np.ndarray, sums: np.ndarray, nbytes: int
) -> None:
    """Let ``add(begin, end)`` make the sums of all rows of H, and put them into S."""

    def task(i: int) -> None:
        add(i * _ROWS, min((i + 1) * _ROWS, len(H)))

    with stage("hidden layer", "H @ W"):
        parallel_for(task, -(-len(H) // _ROWS), 1 + H.size * S.shape[1] // _WORTH_A_THREAD)
        S[...] = sums
        count(operations=2 * H.size * S.shape[1], kind=H.dtype.name, nbytes=H.nbytes + nbytes)
