"""The data that benchmarks run on, and references in float64 to verify against."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from typing import IO, Any

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer

from benchmarks.report import Report
from gpurbf import datasets
from gpurbf.layer.activation import Activation

# Manhattan distances of up to 1,028 pixels are below 2**18, so 1 - d / 2**18 is exact in float32.
MANHATTAN = Activation("manhattan", "triangular", 2.0**-18)


def pixels(N: int, m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pixels as samples and centers: how long a layer takes does not depend on them."""
    rows = np.random.default_rng(0).integers(0, 256, (N + m, n)).astype(np.uint8)
    return rows[:N], rows[N:]


def text(N: int, n: int, k: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """N documents of 80 words among n, as TF-IDF, and their k classes.

    Words are as frequent as Zipf's law has it; each class has its own order of a quarter of them.
    """
    rng = np.random.default_rng(0)
    y, frequency = rng.integers(0, k, N), 1 / np.arange(1, n + 1)
    words = rng.choice(n, (N, 80), p=frequency / frequency.sum())
    orders = np.array([rng.permutation(n) for _ in range(k)])
    words = np.where(rng.random(words.shape) < 0.25, orders[y[:, None], words], words)
    rows = np.repeat(np.arange(N), words.shape[1])
    counts = sp.csr_matrix((np.ones(words.size), (rows, words.ravel())), (N, n))
    return TfidfTransformer().fit_transform(counts), y


def fashion(report: Report, data_home: str | None) -> datasets.Images | None:
    """Fashion-MNIST, or None after the page says why it is not there."""
    try:
        return datasets.load_fashion_mnist(data_home)
    except OSError as error:
        report.text(f"Without Fashion-MNIST: {str(error).splitlines()[0]}")
        return None


def memory_setup(quick: bool, data_home: str | None) -> str:
    """Python lines that do the same in a fresh process."""
    return (
        "from gpurbf.cli.classify import images\n"
        f"X_train, y_train, X_test, y_test = images({quick!r}, {data_home!r})\n"
    )


def write_copies(X: np.ndarray, copies: int, file: IO[Any]) -> None:
    """Write so many copies of X to a file in the folder for temporary files, down to the disk.

    Raises
    ------
    OSError
        If there is too little room.
    """
    folder = tempfile.gettempdir()
    needed, free = copies * X.nbytes, shutil.disk_usage(folder).free
    if needed * 1.05 > free:
        raise OSError(
            errno.ENOSPC,
            f"the benchmark writes a file of {needed / 1e9:.1f} GB and {folder} has "
            f"{free / 1e9:.1f} GB free: make room, or let TMPDIR name a folder that has it",
        )
    for _ in range(copies):
        file.write(X.data)
    file.flush()
    os.fsync(file.fileno())


def distances(X: np.ndarray, C: np.ndarray, metric: str) -> np.ndarray:
    """Squared Euclidean or Manhattan distances by direct float64 differences."""
    from scipy.spatial.distance import cdist

    name = {"euclidean": "sqeuclidean", "manhattan": "cityblock"}[metric]
    return cdist(X.astype(np.float64), C.astype(np.float64), name)
