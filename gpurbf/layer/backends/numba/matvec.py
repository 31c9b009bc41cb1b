"""H @ W on the CPU with sums in float64; the result of a row does not depend on other rows.

With a BLAS, the last bits of a row change with the size of the batch, the row's place in it and the
number of threads (float32 with OpenBLAS, measured). With the tiles' own kernels they do not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.memory import scratch
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_rows

if TYPE_CHECKING:
    from gpurbf.layer.backends.numba.consumers import Consumer

consumers = lazy_module("gpurbf.layer.backends.numba.consumers")
driver = lazy_module("gpurbf.layer.backends.numba.driver")
matvec_kernels = lazy_module("gpurbf.layer.backends.numba.matvec_kernels")
microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")
microkernels = lazy_module("gpurbf.layer.backends.numba.microkernels")
packing = lazy_module("gpurbf.layer.backends.numba.packing")


# The least rows that a thread multiplies at a time, and the least multiplications: they take longer
# than it takes to wake a thread.
_ROWS, _WORTH_A_THREAD = 192, 1 << 20
# Rows that a thread packs at a time, a multiple of those that it must take together.
_TOGETHER = 64
# Outputs that a plain loop is fast enough for.
_FEW = 3


class Weights(NamedTuple):
    """Output weights W (m, k) packed for a kernel that takes few of them or many."""

    blank: Consumer  # the address of scores, its first word, is filled in later
    k: int
    products: int  # multiplications of a row of activations with W

    def consumer(self, scores: np.ndarray) -> Consumer:
        """The consumer that adds to the float64 sums ``scores`` (N, k)."""
        words = [scores.ctypes.data, *self.blank.words[1:]]
        return self.blank._replace(words=words, arrays={"scores": scores})


class GroupedWeights:
    """Output weights (m, k) of groups of centers, each with weights for some of the outputs.

    Parameters
    ----------
    groups : list of (int, ndarray, ndarray)
        For each group its first center, the weights (centers, outputs) of its centers, and the
        columns of (m, k) that they are for.
    k : int
    """

    def __init__(self, groups: list[tuple[int, np.ndarray, np.ndarray]], k: int) -> None:
        self.groups = groups
        self.shape = sum(len(V) for _, V, _ in groups), k

    def dense(self) -> np.ndarray:
        """All weights as an array (m, k)."""
        W = np.zeros(self.shape)
        for first, V, columns in self.groups:
            W[first : first + len(V), columns] = V
        return W

    def norms(self) -> np.ndarray:
        """The Euclidean norm of each output's weights."""
        squares = np.zeros(self.shape[1])
        for _, V, columns in self.groups:
            squares[columns] += np.square(V).sum(axis=0)
        return np.sqrt(squares)


def pack_weights(W: np.ndarray | GroupedWeights, dtype: np.dtype) -> Weights:
    """W (m, k) for activations of that dtype."""
    k = W.shape[1]
    if isinstance(W, np.ndarray) and k < microkernels.LANES:
        W = GroupedWeights([(0, W, np.arange(k))], k)
    if isinstance(W, np.ndarray):
        kernel, lanes = cpu_kernel.micro_kernel("score", dtype), microkernels.LANES
        panels = packing.aligned((-(-k // lanes), len(W), lanes), dtype)
        packing.fill_panels(panels, W)
        blank = consumers.consumer(
            "scores", dtype, scores=0, k=k, W=panels, panel_bytes=panels.strides[0],
            row_bytes=panels.strides[1], kernel=kernel.address, rows=kernel.rows,
            sums=8 * lanes,
        )  # fmt: skip
        return Weights(blank, k, W.size)
    kernel = cpu_kernel.micro_kernel("single" if k < 3 else "partial", dtype)
    packed, segments, columns = packing.pack_groups(W.groups, kernel.strip)
    most = max((len(own) for *_, own in W.groups), default=0)
    n_sums = matvec_kernels.PARTS * microkernel_table.padded(most, kernel.strip)
    blank = consumers.consumer(
        "partial", dtype, scores=0, k=k, W=packed, segments=segments, n_segments=len(segments),
        columns=columns, kernel=kernel.address, rows=kernel.rows, outputs=kernel.strip,
        n_sums=n_sums, itemsize=dtype.itemsize, sums=8 * n_sums,
    )  # fmt: skip
    return Weights(blank, k, sum(V.size for _, V, _ in W.groups))


def times(W: np.ndarray | GroupedWeights, dtype: np.dtype) -> Callable[..., None]:
    """A function of C-contiguous H (N, m) of that dtype and S (N, k) that writes H @ W into S."""
    if isinstance(W, np.ndarray) and W.shape[1] <= _FEW:
        return partial(_multiply, np.ascontiguousarray(W.T, np.float64))
    return partial(_multiply, pack_weights(W, np.dtype(dtype)))


class ByTiles:
    """A layer on a CPU whose tiles of H go through memory: `tile_rows()` rows at a time."""

    def pack_weights(self: Any, W: np.ndarray | GroupedWeights) -> Any:
        """Output weights W (m, k) in the form in which `matvec` needs them."""
        return times(W, self.dtype), W.shape[1]

    def matvec(self: Any, X: Any, W: Any) -> np.ndarray:
        """H @ W (N, k)."""
        (multiply, k), n_rows = W, self.tile_rows()
        H = np.empty((min(n_rows, X.shape[0]), self.m), self.dtype)
        S = np.empty((X.shape[0], k), self.dtype)
        for start in range(0, len(S), n_rows):
            part = slice(start, min(start + n_rows, len(S)))
            tile = H[: part.stop - start]
            self.activations(X[part], tile)
            multiply(tile, S[part])
        return S

    def hand_over(self: Any, X: Any, consumer: Consumer) -> None:
        """Hand H of the rows of X to a consumer, which does not find it in cache."""
        step = max(_TOGETHER, self.tile_rows() // _TOGETHER * _TOGETHER)
        for start in range(0, X.shape[0], step):
            H = values(self, X[start : start + step])
            with stage("output training", "H packed"):
                parallel_rows(hand_over_rows(H, consumer, start), len(H), _TOGETHER)


def values(layer: Any, X: Any) -> np.ndarray:
    """H of the rows of X by a prepared layer on a CPU."""
    H = np.empty((X.shape[0], layer.m), layer.dtype)
    layer.activations(X, H)
    return H


def row_products(H: np.ndarray, W: np.ndarray) -> np.ndarray:
    """H @ W in float64, for H of any dtype."""
    S, wide = np.empty((len(H), W.shape[1])), np.dtype(np.float64)
    # The loop for a few outputs reads all dtypes.
    times(W, wide)(np.ascontiguousarray(H, None if W.shape[1] <= _FEW else wide), S)
    return S


def _multiply(W: np.ndarray | Weights, H: np.ndarray, S: np.ndarray) -> None:
    """Write H @ W into S, for packed weights or for Wᵀ with a few outputs."""
    sums = np.zeros(S.shape)
    if isinstance(W, Weights):
        add, nbytes = hand_over_rows(H, W.consumer(sums)), W.blank.arrays["W"].nbytes
    else:
        add, nbytes = partial(_add_few, H, W, sums), W.nbytes

    least = _WORTH_A_THREAD // max(1, H.shape[1] * S.shape[1])
    with stage("hidden layer", "H @ W"):
        parallel_rows(add, len(H), max(_ROWS, least))
        S[...] = sums
        count(operations=2 * H.size * S.shape[1], kind=H.dtype.name, nbytes=H.nbytes + nbytes)


def _add_few(H: np.ndarray, W: np.ndarray, sums: np.ndarray, rows: slice) -> None:
    matvec_kernels.dot_rows(rows.start, rows.stop, H, W, sums)


def hand_over_rows(H: np.ndarray, consumer: Consumer, top: int = 0) -> Callable[[slice], None]:
    """A function that hands rows of H (N, m), which are rows from ``top`` on, to a consumer."""
    tile = microkernels.BLOCK * H.itemsize + consumer.sums  # a row of it
    given, first = np.array(consumer.words, np.intp), H.ctypes.data - top * H.strides[0]

    def hand_over(rows: slice) -> None:
        _held, memory = scratch(consumers.CHUNK * tile)
        of = top + rows.start, top + rows.stop, first, H.shape[1], H.itemsize
        to = consumer.address, given.ctypes.data, consumer.sums, memory
        driver.stored_rows(*of, *to)

    return hand_over
