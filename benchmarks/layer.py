"""The hidden layer: errors, then speed against scikit-learn, NumPy and the hardware's limit."""

from __future__ import annotations

import ctypes
import functools
import json
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import data, ways
from benchmarks.measure import Times, calls, in_turn, run_python
from benchmarks.report import Report
from gpurbf.cli import classify
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.blas import mkl
from gpurbf.layer.backends.numba.cpu_kernel import KERNELS, VARIABLE, missing
from gpurbf.layer.layer import HiddenLayer
from gpurbf.profiling.machine import compute

TITLE = "The hidden layer"


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Verify, then measure; see the headings."""
    X_train, _, X_test, _ = classify.images(quick, data_home)
    N, m = (300, 64) if quick else (10_000, 4_096)
    rng = np.random.default_rng(0)
    X, C = X_test[:N], X_train[rng.choice(len(X_train), m, replace=False)]
    # gamma="scale" of scikit-learn.
    gamma = float(1 / (X_train.shape[1] * X_train.var()))
    layers = {name: ways.layer(C, name, scale=gamma) for name in ways.there()}
    rounds = 2 if quick else 5
    report.text(
        f"{N:,} samples × {m:,} centers × {X.shape[1]} inputs, uint8, gaussian, gamma {gamma:.3g}. "
        "Seconds are the median of the rounds, their range in parentheses."
    )
    _errors(report, X[: 64 if quick else 1000], C, gamma, list(layers))
    _outputs(report, X, C, gamma, layers, rounds)
    _scores(report, X, C, gamma, layers, rounds)
    _products(report, X, C, rounds)
    _manhattan(report, X, C, list(layers), 1 if quick else 2)
    _cpu_kernels(report, gamma, quick, data_home)
    _growth(report, X_train, gamma, quick)
    _inputs(report, quick)
    _first_use(report, quick)


def _errors(report: Report, X: np.ndarray, C: np.ndarray, gamma: float, names: list[str]) -> None:
    """The largest error of H against float64 for four forms of the same data."""
    forms: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
        "uint8": (lambda A: A, gamma),
        "/ 255, float32": (lambda A: (A / 255).astype(np.float32), gamma * 255**2),
        "/ 255 + 100, float32": (lambda A: (A / 255 + 100).astype(np.float32), gamma * 255**2),
        "/ 255 + 100, float64": (lambda A: A / 255 + 100, gamma * 255**2),
    }
    rows, worst = [], 0.0
    for form, (change, factor) in forms.items():
        x, c = change(X), change(C)
        expected = np.exp(-factor * data.distances(x, c, "euclidean"))
        errors = []
        for name in names:
            layer = ways.layer(c, name, scale=factor)
            errors.append(float(np.abs(layer.activations(x) - expected).max()))
        worst = max(worst, *errors)
        rows.append((form, *(f"{error:.1e}" for error in errors)))
    report.text(f"## Largest error of H against float64, {len(X):,} × {len(C):,}")
    report.table(("data", *names), rows)
    if not worst <= 1e-6:
        raise AssertionError(f"an error of {worst:.2g}")


def _outputs(
    report: Report,
    X: np.ndarray,
    C: np.ndarray,
    gamma: float,
    layers: dict[str, HiddenLayer],
    rounds: int,
) -> None:
    """H returned, each way into the same array."""
    from sklearn.metrics.pairwise import rbf_kernel

    out = np.empty((len(X), len(C)), np.float32)
    x, c = X.astype(np.float32), C.astype(np.float32)
    peer = functools.partial(rbf_kernel, x, c, gamma=gamma)
    candidates: dict[str, Callable[[], Any]] = {"scikit-learn rbf_kernel, float32": peer}
    candidates |= calls(layers, "activations", X, out)
    times = in_turn(candidates, rounds)
    report.text("## H returned")
    lines = (f"* {name}: {layer.describe()}" for name, layer in layers.items())
    report.text("Here and below, on uint8 data:\n\n" + "\n".join(lines))
    _speed_table(report, times, 2 * X.shape[1] * out.size)


def _scores(
    report: Report,
    X: np.ndarray,
    C: np.ndarray,
    gamma: float,
    layers: dict[str, HiddenLayer],
    rounds: int,
) -> None:
    """H @ W for ten outputs, against NumPy's own lines on tiles of 1,024 rows."""
    W = np.random.default_rng(1).normal(size=(len(C), 10)).astype(np.float32)
    x, c = X.astype(np.float32), C.astype(np.float32)
    xx, cc = (x * x).sum(1), (c * c).sum(1)

    def plain() -> np.ndarray:
        S = np.empty((len(x), 10), np.float32)
        for start in range(0, len(x), 1024):
            rows = slice(start, start + 1024)
            H = x[rows] @ c.T
            H *= 2 * gamma
            H -= gamma * xx[rows, None]
            H -= gamma * cc
            np.exp(H, out=H)
            np.matmul(H, W, out=S[rows])
        return S

    expected = np.exp(-gamma * data.distances(X[:100], C, "euclidean")) @ W.astype(np.float64)
    scale = np.abs(expected).max()
    candidates: dict[str, Callable[[], Any]] = {"NumPy: sgemm, exp, product": plain}
    candidates |= calls(layers, "matvec", X, W)
    for name, candidate in candidates.items():
        error = float(np.abs(candidate()[:100] - expected).max() / scale)
        if not error <= 1e-4:
            raise AssertionError(f"scores of {name}: a relative error of {error:.2g}")
    report.text("## H @ W, 10 outputs, H not stored")
    _speed_table(report, in_turn(candidates, rounds), 2 * x.shape[1] * len(x) * len(c))


def _products(report: Report, X: np.ndarray, C: np.ndarray, rounds: int) -> None:
    """Integer products alone, against MKL's and NumPy's products and the registers' limit."""
    dot = Activation("dot", "linear")
    exact = X[:50].astype(np.int64) @ C.astype(np.int64).T
    candidates: dict[str, Callable[[], Any]] = {}
    for name in ways.there():
        layer = HiddenLayer(C, dot, backend=name, precision="exact")
        if not np.array_equal(layer.activations(X[:50]), exact.astype(np.float32)):
            raise AssertionError(f"the products of {name} are not exact")
        if name == "numba":
            # No output weights: the tile is made, converted to float32 and dropped.
            nothing = np.empty((len(C), 0), np.float32)
            candidates["numba, tile dropped"] = functools.partial(layer.matvec, X, nothing)
            # Images have inputs in which all centers near each other are black.
            rng = np.random.default_rng(0)
            x, c = (rng.integers(0, 256, A.shape).astype(np.uint8) for A in (X, C))
            full = HiddenLayer(c, dot, backend=name, precision="exact")
            candidates["numba, random bytes"] = functools.partial(full.matvec, x, nothing)
    x, c = X.astype(np.float32), C.astype(np.float32)
    P = np.empty((len(X), len(C)), np.float32)
    candidates["NumPy sgemm"] = lambda: np.matmul(x, c.T, out=P)
    if "mkl" in ways.there():
        P8, s8 = np.empty(P.shape, np.int32), (C.astype(np.int16) - 128).astype(np.int8)
        candidates["MKL u8·s8"] = lambda: _by_mkl(X, s8, P8)
    times = in_turn(candidates, rounds)
    report.text("## Products alone")
    _speed_table(report, times, 2 * X.shape[1] * P.size)
    ceiling = compute("8-bit products")
    if ceiling is None:
        return
    rate = 2 * X.shape[1] * P.size / times["numba, random bytes"].low
    report.text(
        f"The same instructions on registers alone reach {ceiling / 1e12:.2f} · 10¹² operations/s: "
        f"on random bytes the best round of the tiles is at {100 * rate / ceiling:.0f} % of it. "
        "Inputs of images that are constant over a strip of centers are skipped; the operation "
        "count still includes them."
    )


def _by_mkl(A: np.ndarray, B: np.ndarray, out: np.ndarray) -> None:
    """A Bᵀ by MKL's product of unsigned and signed 8-bit integers, which no backend uses."""
    (N, n), m = A.shape, len(B)
    one, nothing, zeros = ctypes.c_float(1), ctypes.c_float(0), np.zeros(1, np.int32)
    order = mkl._ROW_MAJOR, mkl._NO_TRANSPOSE, mkl._TRANSPOSE
    no_offset, fixed = ctypes.c_int8(0), 173
    mkl._call(
        "cblas_gemm_s8u8s32_64", *order, fixed, N, m, n, one, A, n, no_offset, B, n, no_offset,
        nothing, out, m, zeros,
    )  # fmt: skip


def _manhattan(report: Report, X: np.ndarray, C: np.ndarray, names: list[str], rounds: int) -> None:
    """Manhattan distances, exact, against scikit-learn's."""
    from sklearn.metrics.pairwise import manhattan_distances

    layers = {name: HiddenLayer(C, data.MANHATTAN, backend=name) for name in names}
    expected = data.distances(X[:100], C, "manhattan")
    for name, layer in layers.items():
        if not np.array_equal((1.0 - layer.activations(X[:100])) * 2.0**18, expected):
            raise AssertionError(f"Manhattan distances of {name} are not exact")
    out = np.empty((len(X), len(C)), np.float32)
    x, c = X.astype(np.float32), C.astype(np.float32)
    candidates: dict[str, Callable[[], Any]] = {
        "scikit-learn manhattan_distances": lambda: manhattan_distances(x, c)
    }
    candidates |= calls(layers, "activations", X, out)
    times = in_turn(candidates, rounds)
    report.text("## Manhattan distances, exact in every entry verified")
    _speed_table(report, times, X.shape[1] * out.size, "differences")


def _speed_table(
    report: Report, times: dict[str, Times], operations: int, kind: str = "operations"
) -> None:
    """Seconds, operations a second of the distances alone, and the ratio to the first line."""
    base = next(iter(times.values())).median
    report.table(
        ("what", "seconds", f"10¹² {kind}/s", "first row's time / this"),
        [
            (name, t, f"{operations / t.median / 1e12:.3g}", f"{base / t.median:.2f}")
            for name, t in times.items()
        ],
    )


# Run in a fresh process for each forced kernel; prints seconds of H @ W on `numba` and `numpy`.
_FORCED = """
import json
import numpy as np
from benchmarks import data, ways
from benchmarks.measure import calls, in_turn
{setup}
X, C = X_test[:{N}], X_train[:{m}]
W = np.random.default_rng(1).normal(size=(len(C), 10)).astype(np.float32)
layers = {{name: ways.layer(C, name, scale={gamma!r}) for name in ("numba", "numpy")}}
expected = np.exp(-{gamma!r} * data.distances(X[:100], C, "euclidean"))
assert np.abs(layers["numba"].activations(X[:100]) - expected).max() <= 1e-6
times = in_turn(calls(layers, "matvec", X, W), {rounds})
print(json.dumps({{name: str(time) for name, time in times.items()}} | {{
    "ratio": times["numpy"].median / times["numba"].median,
    "rate": 2 * X.shape[1] * len(X) * len(C) / times["numba"].median / 1e12,
    "info": layers["numba"].describe(),
}}))
"""


def _cpu_kernels(report: Report, gamma: float, quick: bool, data_home: str | None) -> None:
    """H @ W with each CPU kernel forced, against the `numpy` backend in the same process."""
    N, m = (300, 64) if quick else (10_000, 4_096)
    setup = data.memory_setup(quick, data_home)
    code = _FORCED.format(setup=setup, N=N, m=m, gamma=gamma, rounds=2 if quick else 3)
    rows = []
    for kernel in KERNELS:
        if problem := missing(kernel):
            rows.append((kernel, "", "", "", "", problem))
        else:
            result = json.loads(run_python(code, **{VARIABLE: kernel}))
            rate, ratio = f"{result['rate']:.2f}", f"{result['ratio']:.2f}"
            rows.append((kernel, result["numba"], rate, result["numpy"], ratio, result["info"]))
    report.text("## Each CPU kernel forced: H @ W, 10 outputs")
    ratio = "`numpy`'s time / this"
    report.table(
        ("kernel", "seconds", "10¹² operations/s", "`numpy` seconds", ratio, "runs on"), rows
    )


def _growth(report: Report, X: np.ndarray, gamma: float, quick: bool) -> None:
    """H @ W over a decade of samples and a decade of centers."""
    sizes = [100, 1000] if quick else [6_000, 12_000, 24_000, 42_000, 60_000]
    centers = [64] if quick else [600, 1_200, 2_400, 4_200, 6_000]
    N, m = (300, 64) if quick else (10_000, 4_096)
    by_N = _series(X, gamma, [(size, m) for size in sizes])
    by_m = _series(X, gamma, [(N, size) for size in centers])
    report.text("## Growth: H @ W over samples and over centers")
    header = ("samples", "centers", "seconds", "ps a synapse")
    report.table(header, [_growth_row(X.shape[1], *row) for row in by_N + by_m])

    def plot(figure: Any) -> None:
        for axis, series, column, label in zip(
            figure.subplots(1, 2), (by_N, by_m), (0, 1), ("samples N", "centers m")
        ):
            size = np.array([row[column] for row in series], float)
            seconds = np.array([row[2].median for row in series])
            axis.plot(size, seconds, "o", label="measured")
            slope = (size @ seconds) / (size @ size)
            axis.plot(size, slope * size, "-", label="straight line through 0")
            axis.set(xlabel=label, ylabel="seconds", xlim=(0, None), ylim=(0, None))
            axis.legend()

    report.figure("layer-growth", "Seconds over samples and over centers", plot)


def _series(
    X: np.ndarray, gamma: float, shapes: list[tuple[int, int]]
) -> list[tuple[int, int, Times]]:
    """Times of H @ W for each (N, m), all in turn."""
    layers = {m: ways.layer(X[:m], scale=gamma) for _, m in shapes}
    candidates: dict[str, Callable[[], Any]] = {
        f"{N} {m}": functools.partial(layers[m].matvec, X[:N], np.ones((m, 10), np.float32))
        for N, m in shapes
    }
    times = in_turn(candidates, rounds=3)
    return [(N, m, times[f"{N} {m}"]) for N, m in shapes]


def _growth_row(n: int, N: int, m: int, time: Times) -> tuple[str, ...]:
    return f"{N:,}", f"{m:,}", str(time), f"{time.median / (N * m * n) * 1e12:.2f}"


def _inputs(report: Report, quick: bool) -> None:
    """H @ W over the number of inputs: where the products begin to outweigh the rest."""
    N = m = 64 if quick else 4_096
    names = ["numpy", "auto"]
    rows = []
    for n in (8, 64) if quick else (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        X, C = data.pixels(N, m, n)
        W = np.ones((m, 10), np.float32)
        layers = {name: ways.layer(C, name) for name in names}
        times = in_turn(calls(layers, "matvec", X, W), rounds=5)
        work = N * m * n
        rates = [f"{2 * work / times[name].median / 1e12:.2f}" for name in names]
        synapse = f"{times['auto'].median / work * 1e12:.2f}"
        rows.append((n, *rates, synapse, layers["auto"].backend.name))
    report.text(f"## Efficiency over the number of inputs: H @ W, {N:,} × {m:,}, 10¹² operations/s")
    report.table(("inputs", *names, "ps a synapse (auto)", "auto is"), rows)


# Run in a fresh process; prints seconds of the import, of the first fit and of the first predict.
_FIRST = """
import json, time
import sklearn.svm
from sklearn.datasets import load_digits
X, y = load_digits(return_X_y=True)
X = X / {divisor}
started = time.perf_counter()
import gpurbf
imported = time.perf_counter()
model = gpurbf.{estimator}.fit(X, y)
fitted = time.perf_counter()
model.predict(X)
print(json.dumps([imported - started, fitted - imported, time.perf_counter() - fitted]))
"""
_FIRST_USES = (
    ("SVC()", 1, "digits"),
    ("SVC()", 3.14, "digits / 3.14"),
    ("RBFClassifier(100)", 1, "digits"),
)


def _first_use(report: Report, quick: bool) -> None:
    """Delay of the first fit in a process, with nothing compiled before and from the disk cache."""
    rows, processes = [], 1 if quick else 10
    for estimator, divisor, samples in _FIRST_USES[: 1 if quick else None]:
        code = _FIRST.format(estimator=estimator, divisor=divisor)
        with tempfile.TemporaryDirectory() as folder:
            cold, *warm = (
                json.loads(run_python(code, NUMBA_CACHE_DIR=folder)) for _ in range(1 + processes)
            )
        for state, seconds in (("empty", cold), ("full", np.median(warm, axis=0))):
            rows.append((estimator, samples, state, *(f"{value:.3f}" for value in seconds)))
    report.text(
        "## First use: in a fresh process that has imported sklearn.svm\n\n"
        f"With a full cache the median of {processes} processes."
    )
    report.table(
        (
            "estimator",
            "data",
            "Numba's disk cache",
            "`import gpurbf` s",
            "first fit s",
            "first predict s",
        ),
        rows,
    )
