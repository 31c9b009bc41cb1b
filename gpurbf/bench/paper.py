"""The experiment of R. and I. Dogaru (ISEEE 2017): how to cut a layer into BNLs, what it gains.

The measure is theirs: the synapse time t = T / (N m n) of N samples, m centers and n inputs. The
layer is gaussian, H is returned, and the data are integers, so that every way computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpurbf.backends import Activation, Backend, available_backends, get_backend
from gpurbf.backends.naive import compiled_loop, plain_numpy
from gpurbf.backends.tuning import Tile, forced, state
from gpurbf.bench import data, figures
from gpurbf.bench.timing import Times, in_turn, once
from gpurbf.network.hidden import HiddenLayer
from gpurbf.report import Report

__all__ = ["PUBLISHED", "TITLE", "run"]

TITLE = "The paper's experiment"
# Nanoseconds, as their authors state them.
PUBLISHED = {"GeForce GTX 750 (published)": 0.13, "2-core i3, MKL (published)": 0.021}
NAIVE, PLAIN = "naive loop, 1 thread", "plain NumPy, float32"
PRECISIONS = {"float64": "float64", "float32": "float32", "8-bit": "exact"}
# A naive loop over more synapses than that takes seconds.
_SLOW = 1 << 30
# Seconds that a timed repetition takes at least.
_LEAST = 0.02

# H of samples and centers, computed anew at each call.
Evaluation = Callable[[], Any]
# What makes one from uint8 X (N, n) and C (m, n).
Way = Callable[[np.ndarray, np.ndarray], Evaluation]


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Verify every way, then measure; see the headings."""
    _verify(report)
    _over_m(report, quick)
    _over_n(report, quick)
    _on_one_layer(report, quick)
    _tiles(report, quick)
    _cuts(report, quick)


def layer(C: np.ndarray, backend: str, precision: str) -> HiddenLayer:
    """The gaussian layer, in the arithmetic that is named."""
    activation = Activation("euclidean", "gaussian", gamma(C))
    dtype = None if precision == "exact" else precision
    return HiddenLayer(C.astype(dtype or C.dtype), activation, backend=backend, precision=precision)


def gamma(C: np.ndarray) -> float:
    """As wide as the distances of random pixels are large."""
    return 1 / (2 * 85**2 * C.shape[1])


def evaluation(backend: str, precision: str, X: np.ndarray, C: np.ndarray) -> Evaluation:
    """H from a backend's layer, into the same array each time; for a GPU that is host memory."""
    hidden = layer(C, backend, precision)
    x = X if precision == "exact" else X.astype(precision)
    return partial(hidden.outputs, x, np.empty((len(X), len(C)), hidden.dtype))


def naive(X: np.ndarray, C: np.ndarray) -> Evaluation:
    """The three loops."""
    x, c = X.astype(np.float32), C.astype(np.float32)
    return partial(compiled_loop, x, c, gamma(C), np.empty((len(X), len(C)), np.float32))


def plain(dtype: str, X: np.ndarray, C: np.ndarray) -> Evaluation:
    """The formula in NumPy."""
    return partial(plain_numpy, X.astype(dtype), C.astype(dtype), gamma(C))


def there() -> dict[str, Backend]:
    """The backends that can run here."""
    return {name: get_backend(name)[0] for name, why in available_backends().items() if why is None}


def every_way() -> dict[str, Way]:
    """The baselines, then every backend that is there in every precision."""
    ways: dict[str, Way] = {
        NAIVE: naive,
        "plain NumPy, float64": partial(plain, "float64"),
        PLAIN: partial(plain, "float32"),
    }
    for name in there():
        for label, precision in PRECISIONS.items():
            ways[f"{name}, {label}"] = partial(evaluation, name, precision)
    return ways


def compared() -> list[str]:
    """The backend that `auto` takes among those on the CPU, then those on a GPU."""
    found = there()
    cpus = {name: backend for name, backend in found.items() if backend.xp is np}
    best = max(cpus, key=lambda name: cpus[name].preference)
    return [best, *(name for name in found if name not in cpus)]


def main_ways() -> dict[str, Way]:
    """The naive loop, plain NumPy, and the best backend of the CPU and of each GPU."""
    names = {f"{name}, {label}" for name in compared() for label in PRECISIONS}
    return {name: way for name, way in every_way().items() if name in names | {NAIVE, PLAIN}}


def images(N: int, m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pixels as samples and centers: how long a layer takes does not depend on them."""
    rows = np.random.default_rng(0).integers(0, 256, (N + m, n)).astype(np.uint8)
    return rows[:N], rows[N:]


def synapse_times(
    evaluations: dict[str, Evaluation], work: int, rounds: int = 3
) -> dict[str, Times]:
    """Nanoseconds a synapse of each, in turn; short ones are repeated within a round."""
    counts: dict[str, int] = {}
    repeated: dict[str, Evaluation] = {}
    for name, evaluate in evaluations.items():
        evaluate()  # compile, pack the centers
        counts[name] = max(1, round(_LEAST / max(once(evaluate), 1e-7)))
        repeated[name] = partial(_repeat, evaluate, counts[name])
    times = in_turn(repeated, rounds, warm_up=False)
    return {
        name: Times(*(1e9 * seconds / (counts[name] * work) for seconds in times[name]))
        for name in evaluations
    }


def _repeat(evaluate: Evaluation, count: int) -> None:
    for _ in range(count):
        evaluate()


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}"


def _verify(report: Report) -> None:
    """Every way against float64; a wrong one ends the benchmark."""
    X, C = images(64, 200, 100)
    expected = np.exp(-gamma(C) * data.distances(X, C, "euclidean"))
    errors = {}
    for name, way in every_way().items():
        errors[name] = float(np.abs(way(X, C)() - expected).max())
        if not errors[name] <= (1e-12 if "float64" in name else 1e-5):
            raise AssertionError(f"{name}: an error of {errors[name]:.2g}")
    report.text(
        "Synapse time is T / (N·m·n), in nanoseconds, of N samples, m centers and n inputs: the "
        "whole gaussian layer, H returned. Medians of rounds in turn; random pixels. The best "
        f"backend of this CPU is `{compared()[0]}`. Every way was compared with float64 first: the "
        f"largest error of H is {max(errors.values()):.1e}."
    )
    tiles = {name: "tuned" if state(name).tuned else "default" for name in there()}
    report.text("Tiles: " + ", ".join(f"{name} {said}" for name, said in tiles.items()) + ".")


Sweep = dict[str, dict[int, float]]


def _sweep(shapes: dict[int, tuple[int, int, int]], limit: int) -> Sweep:
    """Synapse times of the main ways at each shape (N, m, n); naive ones up to so many synapses."""
    found: Sweep = {}
    for key, (N, m, n) in shapes.items():
        X, C = images(N, m, n)
        ways = {k: way for k, way in main_ways().items() if k != NAIVE or N * m * n <= limit}
        evaluations = {name: way(X, C) for name, way in ways.items()}
        for name, time in synapse_times(evaluations, N * m * n).items():
            found.setdefault(name, {})[key] = time.median
    return found


def _sweep_tables(report: Report, found: Sweep, key: str, name: str) -> None:
    """Synapse times, then how often each goes into the naive loop's (its last measured one)."""
    sizes = list(found[PLAIN])
    report.table(
        (key, *(f"{way}, ns" for way in found)),
        [(size, *(number(s[size]) if size in s else "" for s in found.values())) for size in sizes],
        name,
    )
    gains = figures.speed_ups(found, NAIVE)
    report.text(f"Speed-up against the {NAIVE} (beyond its last size against that):")
    report.table(
        (key, *gains), [(size, *(number(gain[size]) for gain in gains.values())) for size in sizes],
        f"{name}-speed-up",
    )  # fmt: skip


def _over_m(report: Report, quick: bool) -> None:
    """An M × M BNL for growing M."""
    top, n = (11, 784) if quick else (13, 784)
    sizes = [2**k for k in range(3, top + 1)]
    found = _sweep({M: (M, M, n) for M in sizes}, _SLOW)
    report.text(f"## M: a BNL of M samples × M neurons, {n} inputs")
    _sweep_tables(report, found, "M", "paper-m")
    plot = partial(figures.sweep, found, NAIVE, PUBLISHED, "M, samples and neurons of the BNL")
    report.figure("paper-m", "Synapse time and speed-up over M", plot)


def _over_n(report: Report, quick: bool) -> None:
    """One BNL for growing n: the paper advises n > 100."""
    M = 512 if quick else 1024
    sizes = [2**k for k in range(3, 13)]
    found = _sweep({n: (M, M, n) for n in sizes}, _SLOW)
    report.text(f"## n: a BNL of {M} × {M}, 8 to 4096 inputs")
    _sweep_tables(report, found, "n", "paper-n")
    report.text(
        "The paper advises n > 100: below, activation and result weigh more than the sums. Time at "
        "n = 128 against that at 4096: "
        + ", ".join(f"{name} {s[128] / s[4096]:.1f}" for name, s in found.items() if 4096 in s)
        + "."
    )
    plot = partial(figures.sweep, found, NAIVE, PUBLISHED, "inputs n")
    report.figure("paper-n", "Synapse time and speed-up over the number of inputs", plot)


def _on_one_layer(report: Report, quick: bool) -> None:
    """Every backend and precision on the same layer, with three ratios each."""
    N = m = 1024 if quick else 4096
    n = 784
    X, C = images(N, m, n)
    evaluations = {name: way(X, C) for name, way in every_way().items() if name != NAIVE}
    evaluations |= _on_device(X, C)
    times = synapse_times(evaluations, N * m * n, rounds=3)
    # The loop gains nothing from more rows: its time is taken from fewer.
    part = X[: max(1, _SLOW // (m * n))]
    times |= synapse_times({NAIVE: naive(part, C)}, len(part) * m * n, rounds=2)
    cpu = {name for name, backend in there().items() if backend.xp is np}
    fastest = min(
        (name for name in times if name.partition(",")[0] in cpu), key=lambda k: times[k].median
    )
    bases = {"naive loop": NAIVE, "plain NumPy": PLAIN, "best CPU path": fastest}
    rows = [(NAIVE, times.pop(NAIVE)), *times.items()]
    times = dict(rows)
    report.text(
        f"## Every backend on the same layer: {N} × {m} × {n}\n\nThree ratios: how often each time "
        f"goes into that of the {NAIVE}, of {PLAIN}, and of the best CPU path ({fastest})."
    )
    lines = [
        (name, number(t.median), f"{number(t.low)} to {number(t.high)}",
         *(number(times[base].median / t.median) for base in bases.values()))
        for name, t in times.items()
    ]  # fmt: skip
    for name, value in PUBLISHED.items():
        ratios = (number(times[base].median / value) for base in bases.values())
        lines.append((name, number(value), "", *ratios))
    report.table(("way", "ns", "range", *(f"against {b}" for b in bases)), lines, "paper-backends")
    missing = {name: why for name, why in available_backends().items() if why is not None}
    for name, why in missing.items():
        report.text(f"Not measured, `{name}`: {why}")
    if all(backend.xp is np for backend in there().values()):
        report.text("No GPU here: times with and without transfers were not measured on a GPU.")
    ratio = {
        name: times[f"{name}, float64"].median / times[f"{name}, float32"].median
        for name in ("plain NumPy", *there())
    }
    eighth = {
        name: times[f"{name}, float32"].median / times[f"{name}, 8-bit"].median for name in there()
    }
    report.text(
        "float32 against float64 (the paper: about 4 times faster): "
        + ", ".join(f"{name} {value:.1f}" for name, value in ratio.items())
        + ". 8-bit against float32: "
        + ", ".join(f"{name} {value:.1f}" for name, value in eighth.items())
        + "."
    )
    medians = {name: t.median for name, t in times.items()}
    plot = partial(figures.ranking, medians, PUBLISHED)
    report.figure("paper-backends", "Synapse time of every way on the same layer", plot)


def _on_device(X: np.ndarray, C: np.ndarray) -> dict[str, Evaluation]:
    """GPU backends without transfers: samples are there already, H stays there."""
    found: dict[str, Evaluation] = {}
    for name, backend in there().items():
        if backend.xp is np:
            continue
        for label, precision in PRECISIONS.items():
            hidden = layer(C, name, precision)
            on_gpu = backend.xp.asarray(X if precision == "exact" else X.astype(precision))
            out = backend.xp.empty((len(X), len(C)), hidden.dtype)
            evaluate = partial(_synchronised, backend.xp, partial(hidden.outputs, on_gpu, out))
            found[f"{name}, {label}, without transfers"] = evaluate
    return found


def _synchronised(xp: Any, evaluate: Evaluation) -> None:
    evaluate()
    xp.cuda.Device().synchronize()


def _tiles(report: Report, quick: bool) -> None:
    """B and its likes: each backend's own candidates for the block inside a launch."""
    N = m = 1024 if quick else 2048
    X, C = images(N, m, 784)
    found: dict[str, dict[Tile, float]] = {}
    for name, backend in there().items():
        for label, precision in PRECISIONS.items():
            evaluations = {}
            for tile in dict.fromkeys((Tile(), *backend.tiles.get("euclidean", ()))):
                with forced(tile):
                    evaluations[tile] = evaluation(name, precision, X, C)
                    evaluations[tile]()
            times = synapse_times({str(t): e for t, e in evaluations.items()}, X.size * m)
            found[f"{name}, {label}"] = {t: times[str(t)].median for t in evaluations}
    rows = []
    for name, series in found.items():
        best = min(series, key=lambda tile: series[tile])
        rows += [
            (name, tile, number(value), f"{value / series[Tile()]:.2f}", "best" * (tile == best))
            for tile, value in series.items()
        ]
    report.text(
        f"## B: the block inside a launch, {N} × {m} × 784\n\nWhat a backend's tuner may choose: "
        "on a GPU the M and B of the paper; on a CPU the rows of a block that stays in cache "
        "(`numba`) or the megabytes of H between product and activation (`numpy`, `mkl`)."
    )
    report.table(("way", "tile", "ns", "against default", ""), rows, "paper-tiles")
    report.figure("paper-tiles", "Synapse time over the tile", partial(figures.tiles, found))


def _cuts(report: Report, quick: bool) -> None:
    """A large layer as a grid of M × M BNLs, one call each, against one call for all of it."""
    size, n = (1024 if quick else 4096), 784
    X, C = images(size, size, n)
    sizes = [2**k for k in range(6, size.bit_length())]
    found: Sweep = {}
    for name in compared():
        for label, precision in PRECISIONS.items():
            evaluations: dict[str, Evaluation] = {
                str(M): partial(_run_all, _grid(X, C, M, name, precision)) for M in sizes
            }
            evaluations["one"] = evaluation(name, precision, X, C)
            times = synapse_times(evaluations, size * size * n)
            one = times["one"].median
            found[f"{name}, {label}"] = {M: times[str(M)].median / one for M in sizes}
    report.text(
        f"## A layer of {size} × {size} × {n} cut into M × M BNLs, against one launch\n\n"
        "Time of all BNLs, one call each with centers packed before, over the time of one call. "
        "One call is a grid of tiles already, so a cut adds calls and shortens the rows of H."
    )
    report.table(
        ("M", "BNLs", *found),
        [(M, (size // M) ** 2, *(f"{s[M]:.2f}" for s in found.values())) for M in sizes],
        "paper-cuts",
    )
    best = {name: min(sizes, key=lambda M: series[M]) for name, series in found.items()}
    report.text(
        "Best M: " + ", ".join(f"{k} {M} ({found[k][M]:.2f})" for k, M in best.items()) + "."
    )
    report.figure("paper-cuts", "Time of a cut layer", partial(figures.cuts, found))


def _grid(X: np.ndarray, C: np.ndarray, M: int, backend: str, precision: str) -> list[Evaluation]:
    """The BNLs of a layer, each with its own piece of H."""
    x = X if precision == "exact" else X.astype(precision)
    found: list[Evaluation] = []
    for j in range(0, len(C), M):
        hidden = layer(C[j : j + M], backend, precision)
        for i in range(0, len(X), M):
            out = np.empty((M, M), hidden.dtype)
            found.append(partial(hidden.outputs, x[i : i + M], out))
    return found


def _run_all(evaluations: list[Evaluation]) -> None:
    for evaluate in evaluations:
        evaluate()
