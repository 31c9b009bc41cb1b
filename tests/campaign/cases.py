"""Cases: data, their storage and the circumstances, drawn as a few small numbers that shrink."""

import contextlib
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st

from benchmarks import ways
from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer, config_context
from gpurbf.layer.backends import Tile, forced
from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.runtime.threads import limited
from gpurbf.svm import _smo_kernels, binary, pairs

BACKENDS = [name for name in ("numpy", "mkl", "numba") if name in ways.there()]
KERNELS = [name for name in cpu_kernel.KERNELS if cpu_kernel.missing(name) is None]
SEEDS = st.integers(0, 2**32 - 1)
MODELS = {
    "RBFClassifier": RBFClassifier(30, random_state=0),
    "RBFClassifier, lms": RBFClassifier(30, solver="lms", random_state=0),
    "RBFLayer": RBFLayer(30, random_state=0),
    "FSVC": FSVC(random_state=0),
    "SVC": SVC(),
}
NAMES = st.sampled_from(sorted(MODELS))

# Values (N, n) by a generator: quantized of each kind, off it, and awkward in other ways.
VALUES = {
    "pixels": lambda rng, N, n: rng.integers(0, 256, (N, n)),
    "sixteenths": lambda rng, N, n: rng.integers(0, 17, (N, n)) / 16,
    "signed": lambda rng, N, n: rng.integers(-100, 101, (N, n)),
    "mostly zero": lambda rng, N, n: rng.integers(0, 9, (N, n)) * (rng.random((N, n)) < 0.2),
    "real": lambda rng, N, n: rng.standard_normal((N, n)),
    "offset": lambda rng, N, n: rng.standard_normal((N, n)) + 1000,
    "few distinct": lambda rng, N, n: rng.standard_normal((4, n))[rng.integers(0, 4, N)],
    "constant columns": lambda rng, N, n: rng.standard_normal((N, n)) * (np.arange(n) % 2),
    "one odd row": lambda rng, N, n: np.where(
        np.arange(N)[:, None] == N // 2, 0.3, rng.integers(0, 17, (N, n)) / 16
    ),
}
EXACT = ("pixels", "sixteenths", "signed", "mostly zero")


class Storage(NamedTuple):
    """The dtype and the memory layout of an array."""

    dtype: str = "float64"
    order: str = "C"

    def of(self, X):
        """Store the numbers of X, as the dtype rounds them, in this layout."""
        X = np.asarray(X)
        X = (np.rint(X) % 256 if self.dtype == "uint8" else X).astype(self.dtype)
        if self.order == "sparse":
            return sp.csr_matrix(X)
        if self.order == "strided":
            wide = np.zeros((2 * X.shape[0], 3 * X.shape[1]), X.dtype)
            wide[::2, 1::3] = X
            return wide[::2, 1::3]
        if self.order == "reversed":
            return np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1]
        return np.array(X, order=self.order)


class Around(NamedTuple):
    """Circumstances of a computation that its result should not depend on."""

    backend: str = "numba"
    kernel: str = KERNELS[0]
    memory: float = 256
    threads: int = 2
    tile: int | None = None

    @contextlib.contextmanager
    def __call__(self):
        tile = contextlib.nullcontext() if self.tile is None else forced(Tile(M=self.tile))
        with pytest.MonkeyPatch.context() as patch, config_context(memory=self.memory):
            patch.setenv(cpu_kernel.VARIABLE, self.kernel)
            with limited(self.threads), tile:
                yield


class Table(NamedTuple):
    """Samples and labels; `values` names what they are like."""

    seed: int
    values: str
    N: int
    n: int
    k: int

    def make(self, extra=0):
        """X (N + extra, n) in float64 and labels with every class in the first N."""
        rng = np.random.default_rng(self.seed)
        X = VALUES[self.values](rng, self.N + extra, self.n).astype(np.float64)
        y = rng.integers(0, self.k, self.N)
        y[: self.k] = np.arange(self.k)
        return X, y

    def rng(self):
        return np.random.default_rng([self.seed, 1])


def batches(cuts, N):
    """All samples as slices between those cuts that are among them."""
    return [slice(*ends) for ends in pairwise(sorted({0, N, *(cut for cut in cuts if cut < N)}))]


def tables(values=tuple(VALUES), N=120, n=40, k=5):
    return st.builds(
        Table,
        SEEDS,
        st.sampled_from(values),
        st.integers(max(2, k), N),
        st.integers(1, n),
        st.integers(2, k),
    )


ORDERS = ("C", "F", "strided", "reversed", "sparse")


def storages(dtypes=("float64", "float32", "uint8"), orders=ORDERS):
    return st.builds(Storage, st.sampled_from(dtypes), st.sampled_from(orders))


@contextlib.contextmanager
def small_sets():
    """SVC's working sets of 16, so that small problems take many, and steps ahead soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binary, "MAX_SINGLE_SET", 8)
        patch.setattr(binary, "WORKING_SET_LIMITS", (16, 16))
        patch.setattr(pairs, "MAX_MATRIX", 0)
        patch.setattr(_smo_kernels, "CREEPING_SETS", 4)
        yield


AROUND = st.builds(
    Around,
    st.sampled_from(BACKENDS),
    st.sampled_from(KERNELS),
    st.sampled_from([256, 1, 0.01]),
    st.sampled_from([2, 1, 3]),
    st.sampled_from([None, 1, 37, 5000]),
)


def dense(X):
    """The numbers themselves, in float64."""
    return np.asarray(X.toarray() if sp.issparse(X) else X, np.float64)


def refused(error):
    """Whether an error is one that tells its user what to do, not one of NumPy's or ours."""
    words = ("Scale the data", "needs at least", "must be", "outside", "raise alpha")
    return isinstance(error, ValueError) and any(word in str(error) for word in words)
