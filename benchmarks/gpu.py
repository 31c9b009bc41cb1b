"""The GPU backends beside the device's limits, the CPU and the paper's kernel, by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks import data, ways
from benchmarks.measure import Times, calls, in_turn, once
from benchmarks.peak_gpu import event_seconds, limits
from benchmarks.report import Report
from gpurbf import FSVC, SVC, RBFClassifier
from gpurbf.cli import classify
from gpurbf.layer.backends import available_backends
from gpurbf.layer.layer import HiddenLayer

TITLE = "The GPU backends"
GPUS = ("cupy", "numba-cuda")
# What runs: a backend and a precision, and the limit that its rate is a share of.
WAYS = {
    "cupy, 8-bit": ("cupy", "exact", "int8"),
    "cupy, tf32": ("cupy", "tf32", "tf32"),
    "cupy, float32": ("cupy", "float32", "float32"),
    "cupy, float64": ("cupy", "float64", "float64"),
    "numba-cuda, 8-bit": ("numba-cuda", "exact", "int8"),
    "numba-cuda, float32": ("numba-cuda", "float32", "float32 units"),
    "numba-cuda, float64": ("numba-cuda", "float64", "float64"),
}
_OUTPUTS = 10


class Bench(NamedTuple):
    """State that the sections share: the report, the device, and the base shape N × m × n."""

    report: Report
    quick: bool
    names: list[str]
    xp: ModuleType
    limits: dict[str, float]
    shape: tuple[int, int, int]
    ways: dict[str, tuple[str, str, str]]

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
        rounds = 2 if self.quick else 7
        return in_turn(able, rounds, warm_up=False, timer=timer, rest=False)

    def share(self, rate: float, limit: str) -> str:
        """A rate in percent of a limit, nothing where that could not be measured."""
        return f"{100 * rate / self.limits[limit]:.0f}" if limit in self.limits else ""


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Measure what its check found right; see the headings. Where there is no GPU, say so.

    A section or a way that fails is reported as failed and the others go on; what was found is
    written after each section.
    """
    problems = {name: why for name, why in available_backends().items() if name in GPUS}
    names = [name for name in GPUS if problems.get(name, "") is None]
    if not names:
        report.text("**Not measured on a GPU**: there is none here.")
        report.table(("backend", "why it cannot run"), problems.items())
        return
    xp = ways.there()[names[0]].xp
    shape = (128, 48, 32) if quick else (10_000, 4_096, 784)
    found = {way: rest for way, rest in WAYS.items() if rest[0] in names}
    bench = Bench(report, quick, names, xp, {}, shape, found)
    failures = []
    for section in (
        _limits,
        _shapes,
        _manhattan,
        _speed_ups,
        partial(_fits, data_home=data_home),
    ):
        try:
            section(bench)
        except Exception as error:
            failures.append(_failed(getattr(section, "__name__", "_fits").strip("_"), error))
            report.text(failures[-1])
        report.keep()
    if failures:
        raise RuntimeError(f"{len(failures)} sections failed: {'; '.join(failures)}")


def _failed(what: str, error: Exception) -> str:
    return f"**{what} failed**: {type(error).__name__}: {error}"


def _limits(bench: Bench) -> None:
    """Report the limits of the device, timed or from its properties."""
    kernel = ways.there()[bench.names[0]].kernel
    bench.report.text(f"## The limits of {kernel.split('; ')[-1]}")
    size, megabytes = (256, 1) if bench.quick else (8192, 256)
    bench.limits.update(limits(bench.xp, size, megabytes))
    rows = [(what, f"{rate / 1e12:.3g}") for what, rate in bench.limits.items()]
    bench.report.table(("what", "10¹² a second"), rows)


def _scores(bench: Bench, N: int, m: int, n: int) -> dict[str, Callable[[], Any]]:
    """H @ W by every way, all of it on the device."""
    X, C = data.pixels(N, m, n)
    W: Any = np.random.default_rng(1).normal(size=(m, _OUTPUTS)).astype(np.float32)
    x, w = bench.xp.asarray(X), bench.xp.asarray(W)
    return {
        way: partial(ways.layer(C, name, precision).matvec, x, w)
        for way, (name, precision, _) in bench.ways.items()
    }


def _shapes(bench: Bench) -> None:
    """H @ W with everything on the device, over a decade of N, m and n."""
    N, m, n = bench.shape
    base = bench.times(_scores(bench, N, m, n))
    work = 2 * N * m * n
    rows = []
    for way, time in base.items():
        rate, limit = work / time.median, bench.ways[way][2]
        rows.append((way, time, f"{rate / 1e12:.3g}", bench.share(rate, limit), limit))
    bench.report.text(f"## H @ W, {N:,} × {m:,} × {n}, {_OUTPUTS} outputs, all on the device")
    bench.report.table(("what", "seconds", "10¹² operations/s", "%", "of the limit"), rows)
    factors = (0.5, 2) if bench.quick else (0.3, 3, 10)
    sizes = [(int(f * N), m, n) for f in factors] + [(N, int(f * m), n) for f in factors]
    sizes += [(N, m, int(f * n)) for f in (0.1, 0.5, 2, 5)]
    table = []
    for size in sizes:
        times = bench.times(_scores(bench, *size))
        operations = 2 * np.prod(size, dtype=float)
        rates = {way: f"{operations / time.median / 1e12:.3g}" for way, time in times.items()}
        table.append((*(f"{s:,}" for s in size), *(rates.get(way, "") for way in bench.ways)))
    bench.report.text("## H @ W over samples, centers and inputs, 10¹² operations/s")
    bench.report.table(("N", "m", "n", *bench.ways), table)


def _manhattan(bench: Bench) -> None:
    """H returned on the device, every entry of the first rows verified."""
    if "numba-cuda" not in bench.names:
        return
    N, m, n = bench.shape
    X, C = data.pixels(N, m, n)
    expected = data.distances(X[:100], C, "manhattan")
    candidates: dict[str, Callable[[], Any]] = {}
    for precision in ("exact", "float32"):
        layer = HiddenLayer(C, data.MANHATTAN, backend="numba-cuda", precision=precision)
        if not np.array_equal((1 - layer.activations(X[:100])) * 2.0**18, expected):
            raise AssertionError(f"Manhattan distances, precision {precision}, are not exact")
        out = bench.xp.empty((N, m), np.float32)
        candidates[f"numba-cuda, {precision}"] = partial(
            layer.activations, bench.xp.asarray(X), out
        )
    rows = []
    for name, time in bench.times(candidates).items():
        rate = N * m * n / time.median
        share = bench.share(rate, "float32 units, differences")
        rows.append((name, time, f"{rate / 1e12:.3g}", share))
    bench.report.text(f"## Manhattan distances, {N:,} × {m:,} × {n}")
    bench.report.table(("what", "seconds", "10¹² differences/s", "% of the float32 units"), rows)


def _speed_ups(bench: Bench) -> None:
    """H returned: naive loop, plain NumPy, the best CPU backend, then the GPU's ways."""
    N, m, n = bench.shape
    X, C = data.pixels(N, m, n)
    few = max(1, N // 100)  # all rows would take the naive loop minutes
    naive = once(ways.naive(X[:few], C)) * N / few
    cpu, xp = ways.compared()[0], bench.xp
    host = np.empty((N, m), np.float32)
    times = in_turn(
        {
            ways.PLAIN: ways.plain("float32", X, C),
            f"{cpu}, 8-bit": partial(ways.layer(C, cpu, "exact").activations, X, host),
        },
        rounds=3,
    )
    resident, out = xp.asarray(X), xp.empty((N, m), np.float32)
    candidates: dict[str, Callable[[], Any]] = {}
    for way, (name, precision, _) in bench.ways.items():
        if precision != "float64":
            layer = ways.layer(C, name, precision)
            candidates[f"{way}, with transfers"] = partial(layer.activations, X, host)
            candidates[f"{way}, on the device"] = partial(layer.activations, resident, out)
    if "numba-cuda" in bench.names:
        x, c = resident.astype(np.float32), xp.asarray(C.astype(np.float32))
        untiled = partial(ways.one_thread_a_pair, x, c, ways.gamma(C), out)
        candidates[f"{ways.UNTILED}, on the device"] = untiled
    times |= bench.times(candidates)
    plain = times[ways.PLAIN].median
    rows: list[tuple[Any, ...]] = [(f"{ways.NAIVE}, from 1 % of the rows", f"{naive:.2f}", "", "")]
    rows += [
        (name, time, f"{plain / time.median:.3g}", f"{naive / time.median:.3g}")
        for name, time in times.items()
    ]
    bench.report.text(f"## H returned, {N:,} × {m:,} × {n}: how often as fast")
    bench.report.table(("what", "seconds", "as plain NumPy", "as the naive loop"), rows)


def _fits(bench: Bench, data_home: str | None) -> None:
    """RBF, FSVC and SVC on all of MNIST, beside the best CPU backend."""
    X_train, y_train, X_test, y_test = classify.images(bench.quick, data_home)
    m = 64 if bench.quick else 4096
    radius, gamma = (25.0, 1e-3) if bench.quick else (2250.0, 0.02 / 255**2)
    makers: dict[str, Callable[[str], Any]] = {
        f"RBFClassifier({m})": lambda name: RBFClassifier(m, backend=name, random_state=0),
        f"FSVC(radius={radius:g})": lambda name: FSVC(radius=radius, backend=name),
        f"SVC(C=10, gamma={gamma:.2g})": lambda name: SVC(C=10, gamma=gamma, backend=name),
    }
    rows: list[tuple[Any, ...]] = []
    for label, make in makers.items():
        models = {name: make(name) for name in (ways.compared()[0], *bench.names)}
        for name, model in list(models.items()):  # compile
            try:
                model.fit(X_train[:1000], y_train[:1000]).predict(X_test[:100])
            except Exception as error:
                del models[name]
                rows.append((label, name, _failed("it", error), "", ""))
        rounds = 1 if bench.quick else 3
        fits = in_turn(calls(models, "fit", X_train, y_train), rounds, warm_up=False)
        predictions = in_turn(calls(models, "predict", X_test), 2 if bench.quick else 5)
        for name, model in models.items():
            accuracy = 100 * float(np.mean(model.predict(X_test) == y_test))
            rows.append((label, name, fits[name], predictions[name], f"{accuracy:.2f}"))
    bench.report.text(f"## Estimators, {len(X_train):,} samples: seconds from host to host")
    bench.report.table(("estimator", "backend", "fit", "predict", "accuracy %"), rows)
