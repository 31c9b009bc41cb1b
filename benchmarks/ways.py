"""Ways to evaluate one gaussian layer: plain baselines, every backend, GPUs without transfers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpurbf.layer.activation import SQUARED, Activation
from gpurbf.layer.backends import LOADERS, Backend, Tile, best_on_host, get_backend
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module

kernels = lazy_module("benchmarks._naive_kernels")
cuda_kernels = lazy_module("benchmarks._cuda_naive_kernels")
cuda_profiles = lazy_module("gpurbf.layer.backends.cuda.kernels.profiles")
cuda_api = lazy_module("gpurbf.runtime.jit.cuda_api")

NAIVE, PLAIN = "naive loop, 1 thread", "plain NumPy, float32"
UNTILED = "untiled GPU kernel, float32"
DEFAULT = "default"  # what a tile states that states nothing
PRECISIONS = {"float64": "float64", "float32": "float32", "8-bit": "exact"}

# H of samples and centers, computed anew at each call.
Evaluation = Callable[[], Any]
# What makes one from uint8 X (N, n) and C (m, n).
Way = Callable[[np.ndarray, np.ndarray], Evaluation]


def compiled_loop(X: np.ndarray, C: np.ndarray, gamma: float, out: np.ndarray) -> np.ndarray:
    """Gaussian H (N, m) of float32 or float64 data by three loops in one thread."""
    kernels.gaussian_layer(X, C, X.dtype.type(gamma), X.dtype.type(0), out)
    return out


def plain_numpy(X: np.ndarray, C: np.ndarray, gamma: float) -> np.ndarray:
    """Gaussian H (N, m) by the formula |x|² + |c|² - 2 x·c, the product by NumPy's BLAS."""
    squared = (X * X).sum(axis=1)[:, None] + (C * C).sum(axis=1) - 2 * (X @ C.T)
    return np.exp(-X.dtype.type(gamma) * np.maximum(squared, 0))


def one_thread_a_pair(X: Any, C: Any, gamma: float, out: Any, block: int = 16) -> None:
    """Gaussian H (N, m) by the paper's kernel, arrays on the GPU, in blocks of block² threads."""
    grid = -(-len(X) // block), -(-len(C) // block)
    cuda_kernels.pairs[grid, (block, block), cuda_api.current_stream()](
        cuda_api.argument(X), cuda_api.argument(C),
        cuda_kernels.EUCLIDEAN, SQUARED, cuda_profiles.GAUSSIAN,
        float(gamma), 0.0, 1, cuda_api.argument(out),
    )  # fmt: skip


def layer(
    C: np.ndarray, backend: Any = "auto", precision: str = "auto", scale: float | None = None
) -> HiddenLayer:
    """The gaussian layer of a gamma (by default `gamma`), in the arithmetic that is named."""
    activation = Activation("euclidean", "gaussian", gamma(C) if scale is None else scale)
    return HiddenLayer(C, activation, backend=backend, precision=precision)


def gamma(C: np.ndarray) -> float:
    """As wide as the distances of random pixels are large."""
    return 1 / (2 * 85**2 * C.shape[1])


def evaluation(backend: str, precision: str, X: np.ndarray, C: np.ndarray) -> Evaluation:
    """H from a backend's layer, into the same array each time; for a GPU that is host memory."""
    hidden = layer(C, backend, precision)
    x = X if precision == "exact" else X.astype(precision)
    return partial(hidden.activations, x, np.empty((len(X), len(C)), hidden.dtype))


def naive(X: np.ndarray, C: np.ndarray) -> Evaluation:
    """The three loops."""
    x, c = X.astype(np.float32), C.astype(np.float32)
    return partial(compiled_loop, x, c, gamma(C), np.empty((len(X), len(C)), np.float32))


def plain(dtype: str, X: np.ndarray, C: np.ndarray) -> Evaluation:
    """The formula in NumPy."""
    return partial(plain_numpy, X.astype(dtype), C.astype(dtype), gamma(C))


def there() -> dict[str, Backend]:
    """The backends that can run here."""
    missing = refused()
    return {name: get_backend(name)[0] for name in LOADERS if name not in missing}


def stated(tile: Tile) -> str:
    """What a tile states."""
    sizes = [f"{key} {value:g}" for key, value in tile._asdict().items() if value is not None]
    return ", ".join(sizes) or DEFAULT


def refused() -> dict[str, str]:
    """The backends that cannot run here, and why."""
    found = {}
    for name in LOADERS:
        try:
            get_backend(name)
        except BackendUnavailable as error:
            found[name] = str(error)
    return found


def every_way() -> dict[str, Way]:
    """The baselines, then every backend that is there in every precision."""
    found: dict[str, Way] = {
        NAIVE: naive,
        "plain NumPy, float64": partial(plain, "float64"),
        PLAIN: partial(plain, "float32"),
    }
    for name in there():
        for label, precision in PRECISIONS.items():
            found[f"{name}, {label}"] = partial(evaluation, name, precision)
    if "numba-cuda" in there():
        found[UNTILED] = untiled
    return found


def compared() -> list[str]:
    """The backend that `auto` takes among those on the CPU, then those on a GPU."""
    found = there()
    on_gpus = (name for name, backend in found.items() if backend.device)
    return [best_on_host()[0].name, *on_gpus]


def main_ways() -> dict[str, Way]:
    """The naive loop, plain NumPy, and the best backend of the CPU and of each GPU."""
    names = {f"{name}, {label}" for name in compared() for label in PRECISIONS}
    names |= {NAIVE, PLAIN, UNTILED}
    return {name: way for name, way in every_way().items() if name in names}


def untiled(X: np.ndarray, C: np.ndarray, block: int = 16) -> Evaluation:
    """The paper's kernel, one thread a pair in blocks of B × B, with the transfers of X and H."""
    xp = there()["numba-cuda"].xp
    x, c = X.astype(np.float32), xp.asarray(C.astype(np.float32))

    def evaluate() -> Any:
        out = xp.empty((len(x), len(c)), np.float32)
        one_thread_a_pair(xp.asarray(x), c, gamma(C), out, block)
        return out.get()

    return evaluate


def without_transfers(X: np.ndarray, C: np.ndarray) -> dict[str, Evaluation]:
    """Ways that run on a GPU, with samples there already and H left there."""
    found: dict[str, Evaluation] = {}
    for name, backend in there().items():
        xp = backend.xp
        if xp is np:
            continue
        for label, precision in PRECISIONS.items():
            hidden = layer(C, name, precision)
            x = xp.asarray(X if precision == "exact" else X.astype(precision))
            out = xp.empty((len(X), len(C)), hidden.dtype)
            evaluate = partial(_synchronised, xp, partial(hidden.activations, x, out))
            found[f"{name}, {label}, without transfers"] = evaluate
        if name == "numba-cuda":
            x, c = xp.asarray(X.astype(np.float32)), xp.asarray(C.astype(np.float32))
            out = xp.empty((len(X), len(C)), np.float32)
            evaluate = partial(_synchronised, xp, partial(one_thread_a_pair, x, c, gamma(C), out))
            found[f"{UNTILED}, without transfers"] = evaluate
    return found


def _synchronised(xp: Any, evaluate: Evaluation) -> None:
    evaluate()
    xp.cuda.get_current_stream().synchronize()
