"""Compile all kernels for this CPU now, so that no first call has to wait.

Use it when you build the image of a container, or for an installation that several users share: set
NUMBA_CACHE_DIR to a folder that all of them can write to (Numba requires this even if it only
reads), now and wherever the package is used. On another kind of CPU kernels are compiled again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import joblib
import numpy as np
import scipy.sparse as sp

import gpurbf
from gpurbf.cli import BACKEND
from gpurbf.cli.processes import Processes
from gpurbf.layer.activation import METRICS, PROFILES
from gpurbf.layer.backends import LOADERS, get_backend
from gpurbf.runtime.lazy import lazy_module

jit = lazy_module("gpurbf.runtime.jit")


KERNELS: Any = ("rbf", "laplacian", "linear", "poly", "sigmoid")
_FEW = 600
_KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    # With inputs that are 0 in all samples, as in images: these are left out.
    "uint8": lambda X: np.pad(X.astype(np.uint8), [(0, 0), (0, 32)]),
    "whole numbers": np.round,
    "whole, float32": lambda X: np.round(X).astype(np.float32),
    "float32": lambda X: X.astype(np.float32),
    "float64": lambda X: X,
    "wide, sparse": lambda X: sp.csr_array(sp.hstack([X, sp.csr_array((len(X), 2048))])),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", default="auto", choices=["auto", *LOADERS], help=BACKEND)


def run(arguments: argparse.Namespace) -> None:
    """Fit and predict a few samples of every kind; print the times and the cache folder."""
    get_backend(arguments.backend)
    folder = jit.cache_folder()
    # In two processes, as Numba compiles one kernel at a time. They have few kernels in common.
    with Processes(min(2, joblib.cpu_count())) as pool:
        list(pool.map(use, [arguments.backend] * 2, (True, False)))
    print(f"kernels are kept in {folder}")


def use(backend: str, svc: bool) -> None:
    """Fit and predict a few samples of every kind with SVC, or with all other estimators."""
    jit.announcer.said = True  # no message about compiling: the caller asked for it
    for kind, convert in _KINDS.items():
        X, y = _samples()
        X, began = convert(X), time.perf_counter()
        if sp.issparse(X) and svc and backend != "auto":
            continue  # it refuses samples that are too wide to be made dense
        for model, classes in _models(backend):
            if isinstance(model, gpurbf.SVC) != svc:
                continue
            with warnings.catch_warnings(action="ignore"):
                labels = y if classes == 2 else np.arange(len(y)) % classes
                # SVC keeps the whole kernel matrix of few samples, and parts of a larger one.
                for n in (_FEW, len(y)) if svc else (len(y),):
                    model.fit(X[:n], labels[:n])
                    (model.predict if hasattr(model, "predict") else model.transform)(X[:n])
        if sp.issparse(X) and not svc:  # sparse samples with dense centers
            gpurbf.RBFLayer(centers=np.ones((1, X.shape[1]))).fit(X).transform(X[:1])
        what = f"{'SVC' if svc else 'others'}, {kind}"
        print(f"{what:22} {time.perf_counter() - began:6.1f} s", flush=True)


def _samples() -> tuple[np.ndarray, np.ndarray]:
    """Two classes, some labels wrong, enough samples for every path of the solvers."""
    rng = np.random.default_rng(0)
    y = np.arange(4200) % 2
    X = rng.uniform(1, 100, (len(y), 8))
    X[y == 1, 0] += 100
    y[::20] ^= 1
    return X, y


def _models(backend: str) -> Iterator[tuple[Any, int]]:
    """Estimators that together use all kernels, each with a number of classes to fit."""
    # One output, a few outputs and many outputs use different kernels.
    yield gpurbf.RBFClassifier(50, backend=backend, random_state=0), 4
    # Exact sums need many centers and a ridge.
    for alpha in (1.0, 1e-12):
        many = gpurbf.RBFClassifier(300, gamma=1e-4, alpha=alpha, backend=backend, random_state=0)
        yield many, 20
    # H is kept in 16 bits if that is enough for the ridge.
    for options in (
        {"precision": "float32", "gamma": 1e-4},
        {"solver": "cg"},
        {"solver": "cg", "alpha": 1e-12},
    ):
        yield gpurbf.RBFClassifier(300, backend=backend, **options), 2
    yield gpurbf.RBFClassifierCV(n_centers=50, backend=backend), 2
    yield gpurbf.FSVC(60.0, backend=backend, random_state=0), 2
    yield gpurbf.FSVC.published(100.0, learning_rate=0.1, backend=backend), 2
    for kernel in KERNELS:
        svc = gpurbf.SVC(kernel=kernel, gamma=1e-4, max_iter=5000, backend=backend)
        yield svc, 2
        if kernel == "linear":  # its outputs are float64 for float32 samples too
            yield svc.set_params(cache_size=0.01), 4  # and sums of inputs replace kernel rows
    # A problem whose working sets converge slowly.
    yield gpurbf.SVC(C=100, gamma=0.01, max_iter=20_000, backend=backend), 2
    for metric in METRICS:
        for kernel in PROFILES:
            yield gpurbf.RBFLayer(20, kernel=kernel, metric=metric, backend=backend), 2
