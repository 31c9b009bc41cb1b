"""The experiment of R. and I. Dogaru (ISEEE 2017): how to cut a layer into BNLs, what it gains.

The measure is theirs: the synapse time t = T / (N m n) of N samples, m centers and n inputs. The
layer is gaussian, H is returned, and the data are integers, so that every way computes the same.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks import data, figures, ways
from benchmarks.measure import Times, in_turn, once
from benchmarks.report import Report
from benchmarks.ways import Evaluation
from gpurbf.layer.backends import Tile, forced

TITLE = "The paper's experiment"
# Nanoseconds, as their authors state them.
PUBLISHED = {"GeForce GTX 750 (published)": 0.13, "2-core i3, MKL (published)": 0.021}


class Sizes(NamedTuple):
    """Samples, and as many centers, of the layers of each section; `slow`: synapses of naive ones.

    ``largest``: the last of the M; ``over_n``, ``backends``, ``tiles``, ``cut``: of the others.
    """

    largest: int
    over_n: int
    backends: int
    tiles: int
    cut: int
    slow: int = 1 << 30  # takes the naive loop a second


FULL = Sizes(largest=8192, over_n=1024, backends=4096, tiles=2048, cut=4096)
QUICK = Sizes(largest=2048, over_n=512, backends=1024, tiles=1024, cut=1024)
# Seconds that a timed repetition takes at least.
_LEAST = 0.02


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Verify every way, then measure; see the headings."""
    _verify(report)
    sizes = QUICK if quick else FULL
    _over_m(report, sizes)
    _over_n(report, sizes)
    _on_one_layer(report, sizes)
    _tiles(report, sizes.tiles)
    _cuts(report, sizes.cut)


def synapse_times(
    evaluations: dict[str, Evaluation], work: int, rounds: int = 3
) -> dict[str, Times]:
    """Nanoseconds a synapse of each, in turn; short ones are repeated within a round."""
    counts: dict[str, int] = {}
    repeated: dict[str, Evaluation] = {}
    for name, evaluate in evaluations.items():
        evaluate()  # compile, pack the centers
        counts[name] = max(1, round(_LEAST / max(once(evaluate), 1e-7)))
        repeated[name] = partial(_run_all, [evaluate] * counts[name])
    # No rest between so many short rounds: --quick would take three minutes instead of one.
    times = in_turn(repeated, rounds, warm_up=False, rest=False)
    return {
        name: Times(*(1e9 * seconds / (counts[name] * work) for seconds in times[name]))
        for name in evaluations
    }


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}"


def _verify(report: Report) -> None:
    """Every way against float64; a wrong one ends the benchmark."""
    X, C = data.pixels(64, 200, 100)
    expected = np.exp(-ways.gamma(C) * data.distances(X, C, "euclidean"))
    errors = {}
    for name, way in ways.every_way().items():
        errors[name] = float(np.abs(way(X, C)() - expected).max())
        if not errors[name] <= (1e-12 if "float64" in name else 1e-5):
            raise AssertionError(f"{name}: an error of {errors[name]:.2g}")
    report.text(
        "Synapse time is T / (N·m·n), in nanoseconds, of N samples, m centers and n inputs: the "
        "whole gaussian layer, H returned. Medians of rounds in turn; random pixels. The best "
        f"backend of this CPU is `{ways.compared()[0]}`. Every way was compared with float64 "
        f"first: the largest error of H is {max(errors.values()):.1e}."
    )


Sweep = dict[str, dict[int, float]]


def _sweep(shapes: dict[int, tuple[int, int, int]], limit: int) -> Sweep:
    """Synapse times of the main ways at each shape (N, m, n); naive ones up to so many synapses."""
    found: Sweep = {}
    for key, (N, m, n) in shapes.items():
        X, C = data.pixels(N, m, n)
        evaluations = {
            name: way(X, C)
            for name, way in ways.main_ways().items()
            if name != ways.NAIVE or N * m * n <= limit
        }
        for name, time in synapse_times(evaluations, N * m * n).items():
            found.setdefault(name, {})[key] = time.median
    return found


def _sweep_tables(report: Report, found: Sweep, key: str, name: str) -> None:
    """Synapse times, then how often each goes into the naive loop's (its last measured one)."""
    sizes = list(found[ways.PLAIN])
    report.table(
        (key, *(f"{way}, ns" for way in found)),
        [(size, *(number(s[size]) if size in s else "" for s in found.values())) for size in sizes],
        name,
    )
    gains = figures.speed_ups(found, ways.NAIVE)
    report.text(f"Speed-up against the {ways.NAIVE} (beyond its last size against that):")
    report.table(
        (key, *gains), [(size, *(number(gain[size]) for gain in gains.values())) for size in sizes],
        f"{name}-speed-up",
    )  # fmt: skip


def _over_m(report: Report, sizes: Sizes) -> None:
    """An M × M BNL for growing M."""
    n, several = 784, [2**k for k in range(3, sizes.largest.bit_length())]
    found = _sweep({M: (M, M, n) for M in several}, sizes.slow)
    report.text(f"## M: a BNL of M samples × M neurons, {n} inputs")
    _sweep_tables(report, found, "M", "paper-m")
    plot = partial(figures.sweep, found, ways.NAIVE, PUBLISHED, "M, samples and neurons of the BNL")
    report.figure("paper-m", "Synapse time and speed-up over M", plot)


def _over_n(report: Report, sizes: Sizes) -> None:
    """One BNL for growing n: the paper advises n > 100."""
    M = sizes.over_n
    found = _sweep({2**k: (M, M, 2**k) for k in range(3, 13)}, sizes.slow)
    report.text(f"## n: a BNL of {M} × {M}, 8 to 4096 inputs")
    _sweep_tables(report, found, "n", "paper-n")
    report.text(
        "The paper advises n > 100: below, activation and result weigh more than the sums. Time at "
        "n = 128 against that at 4096: "
        + ", ".join(f"{name} {s[128] / s[4096]:.1f}" for name, s in found.items() if 4096 in s)
        + "."
    )
    plot = partial(figures.sweep, found, ways.NAIVE, PUBLISHED, "inputs n")
    report.figure("paper-n", "Synapse time and speed-up over the number of inputs", plot)


def _on_one_layer(report: Report, sizes: Sizes) -> None:
    """Every backend and precision on the same layer, with three ratios each."""
    N = m = sizes.backends
    n = 784
    X, C = data.pixels(N, m, n)
    evaluations = {name: way(X, C) for name, way in ways.every_way().items() if name != ways.NAIVE}
    evaluations |= ways.without_transfers(X, C)
    times = synapse_times(evaluations, N * m * n, rounds=3)
    # The loop gains nothing from more rows: its time is taken from fewer.
    part = X[: max(1, sizes.slow // (m * n))]
    times |= synapse_times({ways.NAIVE: ways.naive(part, C)}, len(part) * m * n, rounds=2)
    cpu = {name for name, backend in ways.there().items() if backend.xp is np}
    fastest = min(
        (name for name in times if name.partition(",")[0] in cpu), key=lambda k: times[k].median
    )
    bases = {"naive loop": ways.NAIVE, "plain NumPy": ways.PLAIN, "best CPU path": fastest}
    rows = [(ways.NAIVE, times.pop(ways.NAIVE)), *times.items()]
    times = dict(rows)
    report.text(
        f"## Every backend on the same layer: {N} × {m} × {n}\n\nThree ratios, to {ways.NAIVE}, "
        f"{ways.PLAIN} and the best CPU path ({fastest})."
    )
    lines = [
        (name, number(t.median), f"{number(t.low)} to {number(t.high)}",
         *(number(times[base].median / t.median) for base in bases.values()))
        for name, t in times.items()
    ]  # fmt: skip
    for name, value in PUBLISHED.items():
        ratios = (number(times[base].median / value) for base in bases.values())
        lines.append((name, number(value), "", *ratios))
    report.table(
        ("way", "ns", "range", *(f"{b}'s time / this" for b in bases)), lines, "paper-backends"
    )
    for name, why in ways.refused().items():
        report.text(f"Not measured, `{name}`: {why}")
    if all(backend.xp is np for backend in ways.there().values()):
        report.text("No GPU here: times with and without transfers were not measured on a GPU.")
    ratio = {
        name: times[f"{name}, float64"].median / times[f"{name}, float32"].median
        for name in ("plain NumPy", *ways.there())
    }
    eighth = {
        name: times[f"{name}, float32"].median / times[f"{name}, 8-bit"].median
        for name in ways.there()
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


def tiles_to_try(name: str) -> tuple[Tile, ...]:
    """The tiles that are compared with a backend's own."""
    if name == "numba-cuda":  # those of all products
        return Tile(M=128, B=16), Tile(M=64, B=8)
    sizes = (24, 48, 96, 192, 384) if name == "numba" else (256, 512, 2048)
    return tuple(Tile(M=M) for M in sizes)


def _tiles(report: Report, N: int) -> None:
    """B and its likes: each backend's own candidates for the block inside a launch."""
    X, C = data.pixels(N, N, 784)
    found: dict[str, dict[str, float]] = {}
    for name in ways.there():
        for label, precision in ways.PRECISIONS.items():
            evaluations = {}
            for tile in dict.fromkeys((Tile(), *tiles_to_try(name))):
                with forced(tile):
                    evaluate = ways.evaluation(name, precision, X, C)
                    evaluate()
                evaluations[ways.stated(tile)] = evaluate
            times = synapse_times(evaluations, X.size * N)
            found[f"{name}, {label}"] = {t: times[t].median for t in evaluations}
    if "numba-cuda" in ways.there():
        evaluations = {ways.stated(Tile(B=B)): ways.untiled(X, C, B) for B in (4, 8, 16, 32)}
        evaluations[ways.DEFAULT] = ways.untiled(X, C)
        times = synapse_times(evaluations, X.size * N)
        found[ways.UNTILED] = {t: times[t].median for t in (ways.DEFAULT, *evaluations)}
    rows = []
    for name, series in found.items():
        best = min(series, key=lambda tile: series[tile])
        default = series[ways.DEFAULT]
        rows += [
            (name, tile, number(value), f"{value / default:.2f}", "best" * (tile == best))
            for tile, value in series.items()
        ]
    report.text(
        f"## B: the block inside a launch, {N} × {N} × 784\n\nWhat a backend may be told: "
        "on a GPU the M and B of the paper; on a CPU the samples of a block that stays in cache "
        "(`numba`) or of a product that is then activated (`numpy`, `mkl`)."
    )
    report.table(("way", "tile", "ns", "time / default's", ""), rows, "paper-tiles")
    report.figure("paper-tiles", "Synapse time over the tile", partial(figures.tiles, found))


def _cuts(report: Report, size: int) -> None:
    """A large layer as a grid of M × M BNLs, one call each, against one call for all of it."""
    n = 784
    X, C = data.pixels(size, size, n)
    sizes = [2**k for k in range(6, size.bit_length())]
    found: Sweep = {}
    for name in ways.compared():
        for label, precision in ways.PRECISIONS.items():
            evaluations: dict[str, Evaluation] = {
                str(M): partial(_run_all, _grid(X, C, M, name, precision)) for M in sizes
            }
            evaluations["one"] = ways.evaluation(name, precision, X, C)
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
        hidden = ways.layer(C[j : j + M], backend, precision)
        for i in range(0, len(X), M):
            out = np.empty((M, M), hidden.dtype)
            found.append(partial(hidden.activations, x[i : i + M], out))
    return found


def _run_all(evaluations: list[Evaluation]) -> None:
    for evaluate in evaluations:
        evaluate()
