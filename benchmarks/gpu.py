"""The GPU backends beside the device's limits, the CPU and the paper's kernel, by CUDA events."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks import data, ways
from benchmarks.measure import Times, calls, in_turn, once
from benchmarks.peak_gpu import event_seconds, limits
from benchmarks.report import Report
from gpurbf import FSVC, SVC, RBFClassifier
from gpurbf.cli import classify
from gpurbf.layer.backends import GPUS, Backend, best_on_host, get_backend
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.linalg import cholesky

TITLE = "The GPU backends"
_PRECISIONS = {"8-bit": "exact", "tf32": "tf32", "float32": "float32", "float64": "float64"}
_OUTPUTS = 10


class Bench(NamedTuple):
    """State that the sections share: the report, sizes, and the backends on the GPU by name."""

    report: Report
    quick: bool
    data_home: str | None
    backends: dict[str, Backend]

    @property
    def xp(self) -> Any:
        """The library of the device's arrays."""
        return next(iter(self.backends.values())).xp

    def layer(self, name: str, precision: str, C: np.ndarray) -> HiddenLayer:
        """The gaussian layer of a backend, which is right or wrong."""
        return ways.layer(C, (self.backends[name], name), precision)

    def layers(self, C: np.ndarray) -> dict[str, HiddenLayer]:
        """Layers by backend and precision."""
        return {
            f"{name}, {label}": self.layer(name, precision, C)
            for name in self.backends
            for label, precision in _PRECISIONS.items()
            if precision != "tf32" or "tf32" in self.backends[name].precisions
        }

    def times(self, candidates: dict[str, Callable[[], Any]]) -> dict[str, Times]:
        """In turn, on the device's clock, those that run; work on other streams ends in a call."""
        able = {}
        for name, call in candidates.items():
            try:
                call()
            except Exception as error:
                self.report.text(_failed(name, error))
            else:
                able[name] = call
        timer = partial(event_seconds, self.xp)
        return in_turn(able, 2 if self.quick else 7, warm_up=False, timer=timer, rest=False)


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Measure what its check found right; see the headings. Where there is no GPU, say so.

    A section or a way that fails is reported as failed and the others go on; what was found is
    written after each section.
    """
    problems = {name: why for name, why in ways.refused().items() if name in GPUS}
    names = [name for name in GPUS if name not in problems]
    if not names:
        report.text("**Not measured on a GPU**: there is none here.")
        report.table(("backend", "why it cannot run"), problems.items())
        return
    bench = Bench(report, quick, data_home, {name: get_backend(name)[0] for name in names})
    failures = []
    for name, section in SECTIONS.items():
        try:
            section(bench)
        except Exception as error:
            failures.append(_failed(name, error))
            report.text(failures[-1])
        report.keep()
    if failures:
        raise RuntimeError(f"{len(failures)} sections failed: {'; '.join(failures)}")


def _failed(what: str, error: Exception) -> str:
    return f"**{what} failed**: {type(error).__name__}: {error}"


def _limits(bench: Bench) -> None:
    """Report the limits of the device."""
    kernel = next(iter(bench.backends.values())).kernel
    bench.report.text(f"## The limits of {kernel.split('; ')[-1]}")
    size, megabytes = (256, 1) if bench.quick else (8192, 256)
    found = limits(bench.xp, size, megabytes)
    rows = [(what, f"{rate / 1e12:.3g}") for what, rate in found.items()]
    bench.report.table(("what", "10¹² a second"), rows)


class _Row(NamedTuple):
    """A call to time, and the milliseconds that were estimated for an H100 before there was one."""

    what: str
    call: Callable[[], Any]
    floor: float
    attainable: float


def _table(bench: Bench) -> None:
    """Time each part on the device, by its clock and the wall's, beside the estimates."""
    N, m, n = (200, 32, 64) if bench.quick else (60_000, 4096, 784)
    failed = 0
    for name, backend in bench.backends.items():
        bench.report.text(f"## {backend.kernel}, {N:,} × {m:,} × {n}, 8-bit, all on the device")
        rows: list[tuple[Any, ...]] = []
        for row in _parts(bench, name, N, m, n):
            try:
                found = _milliseconds(bench.xp, row.call)
            except Exception as error:  # the other rows are wanted all the same
                found, failed = ("failed", f"{type(error).__name__}: {error}"), failed + 1
            print(row.what, *found, file=sys.stderr, flush=True)  # what hangs takes the table along
            rows.append((row.what, *found, f"{row.floor:g}", f"{row.attainable:g}"))
        head = "what", "device ms", "wall ms", "H100, estimates: floor", "attainable"
        bench.report.table(head, rows)
    if failed:
        raise RuntimeError(f"{failed} rows failed")


def _parts(bench: Bench, name: str, N: int, m: int, n: int) -> Iterator[_Row]:
    (X, C), rng, xp = data.pixels(N, m, n), np.random.default_rng(0), bench.xp
    layer = bench.layer(name, "exact", C)
    targets = np.eye(10)[X[:, 0] % 10]
    x, W, T = (xp.asarray(A) for A in (X, rng.normal(size=(m, _OUTPUTS)), targets))
    out = xp.empty((N, m), layer.dtype)
    yield _Row("H", partial(layer.activations, x, out), 0.33, 0.45)
    yield _Row("H @ W, 10 outputs", partial(layer.matvec, x, W), 0.195, 0.45)
    sums = xp.zeros((m, m)), xp.zeros((m, 10))
    yield _Row("HᵀH", partial(layer.gram, x, T, None, np.zeros(m), sums), 15, 20)
    A = xp.asarray(np.cov(rng.normal(size=(2 * m, m)), rowvar=False))
    yield _Row("Cholesky, float64", lambda: cholesky(A.copy()), 0.4, 4)


def _milliseconds(xp: Any, call: Callable[[], Any]) -> tuple[str, str]:
    """Of one of 20 calls between two events, after half a second of them; one by the wall."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.5:
        call()
        xp.cuda.Device().synchronize()
    device = 1e3 * event_seconds(xp, lambda: [call() for _ in range(20)]) / 20
    begin = time.perf_counter()
    call()
    xp.cuda.Device().synchronize()
    return f"{device:.3g}", f"{1e3 * (time.perf_counter() - begin):.3g}"


def _speed_ups(bench: Bench) -> None:
    """H in every precision, with transfers and without, beside the naive loop, NumPy, the CPU."""
    N, m, n = (128, 48, 32) if bench.quick else (10_000, 4_096, 784)
    X, C = data.pixels(N, m, n)
    few = max(1, N // 100)  # all rows would take the naive loop minutes
    naive = once(ways.naive(X[:few], C)) * N / few
    cpu, xp, host = best_on_host()[0].name, bench.xp, np.empty((N, m), np.float32)
    times = in_turn(
        {
            ways.PLAIN: ways.plain("float32", X, C),
            f"{cpu}, 8-bit": partial(ways.layer(C, cpu, "exact").activations, X, host),
        },
        rounds=3,
    )
    resident, out = xp.asarray(X), xp.empty((N, m), np.float32)
    candidates: dict[str, Callable[[], Any]] = {}
    for way, layer in bench.layers(C).items():
        candidates[f"{way}, on the device"] = partial(layer.activations, resident)
        if layer.dtype == host.dtype:
            candidates[f"{way}, with transfers"] = partial(layer.activations, X, host)
    if "numba-cuda" in bench.backends:
        x, c = resident.astype(np.float32), xp.asarray(C.astype(np.float32))
        untiled = partial(ways.one_thread_a_pair, x, c, ways.gamma(C), out)
        candidates[f"{ways.UNTILED}, on the device"] = untiled
    times |= bench.times(candidates)
    plain = times[ways.PLAIN].median
    rows: list[tuple[Any, ...]] = [(f"{ways.NAIVE}, from 1 % of the rows", f"{naive:.2f}", "", "")]
    rows += [
        (name, time, f"{2e-12 * N * m * n / time.median:.3g}", f"{plain / time.median:.3g}")
        for name, time in times.items()
    ]
    bench.report.text(f"## H returned, {N:,} × {m:,} × {n}: speed-up over plain NumPy")
    bench.report.table(("what", "seconds", "10¹² operations/s", "plain NumPy's time / this"), rows)


def _fits(bench: Bench) -> None:
    """SVC, RBF and FSVC on all of MNIST, beside the best CPU backend."""
    X_train, y_train, X_test, y_test = classify.images(bench.quick, bench.data_home)
    m = 64 if bench.quick else 4096
    radius, gamma = (25.0, 1e-3) if bench.quick else (800.0, 0.02 / 255**2)
    makers: dict[str, Callable[[str], Any]] = {
        f"SVC(C=10, gamma={gamma:.2g})": lambda name: SVC(C=10, gamma=gamma, backend=name),
        f"RBFClassifier({m})": lambda name: RBFClassifier(m, backend=name, random_state=0),
        f"FSVC(radius={radius:g})": lambda name: FSVC(radius=radius, backend=name, random_state=0),
    }
    for label, make in makers.items():
        rows: list[tuple[Any, ...]] = []
        models = {name: make(name) for name in (best_on_host()[0].name, *bench.backends)}
        for name, model in list(models.items()):  # compile
            try:
                model.fit(X_train[:1000], y_train[:1000]).predict(X_test[:100])
            except Exception as error:
                del models[name]
                rows.append((name, _failed("it", error), "", "", ""))
        rounds = 1 if bench.quick else 3
        fits = in_turn(calls(models, "fit", X_train, y_train), rounds, warm_up=False)
        predictions = in_turn(calls(models, "predict", X_test), rounds)
        for name, model in models.items():
            accuracy = f"{100 * model.score(X_test, y_test):.2f}"
            rows.append((name, fits[name], predictions[name], accuracy, model.backend_info_))
        bench.report.text(f"## {label}, {len(X_train):,} images: seconds from host to host")
        bench.report.table(("backend", "fit", "predict", "accuracy %", "what ran"), rows)


SECTIONS = {"limits": _limits, "table": _table, "speed-ups": _speed_ups, "fits": _fits}
