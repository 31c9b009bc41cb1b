"""The tuner's choice against every candidate and against the default, on shapes it did not see."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import tuner
from benchmarks.timing import Times, in_turn
from gpurbf.layer.backends import Tile, available_backends
from gpurbf.layer.backends.tile import RANGES
from gpurbf.profiling.tables import Report

TITLE = "Tiles"

_DEFAULT = str(Tile())

_SHAPES = (
    ("exact", 5_000, 2_000, 500),
    ("float32", 10_000, 1_000, 100),
    ("float64", 3_000, 1_000, 1_000),
)


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Tune for the range of each shape's inputs, then time all candidates on the shape itself."""
    report.text(
        "H @ W for ten outputs, H not stored, on random data. The tuner measures made-up layers of "
        "another size in the same range of inputs; then every candidate of its grid runs on the "
        "layer of the table, 15 rounds in turn. What is best by the median was lucky too, so the "
        "default, the tuned tile and the best run again, 100 rounds in turn: the table's "
        "milliseconds are the median of these, their range in parentheses."
    )
    rows, against_best, against_default = [], [], []
    for name, problem in available_backends().items():
        for shape in _SHAPES if problem is None else ():
            precision, N, m, n = shape if not quick else (shape[0], 300, 64, shape[3])
            tuned, best, times = _compare(name, precision, N, m, n, quick)
            against_best.append(times[tuned].median / times[best].median)
            against_default.append(times[tuned].median / times[_DEFAULT].median)
            rows.append(
                (
                    name,
                    precision,
                    f"{N:,} × {m:,} × {n}",
                    _milliseconds(times[_DEFAULT]),
                    f"{tuned}: {_milliseconds(times[tuned])}",
                    f"{best}: {_milliseconds(times[best])}",
                    f"{against_best[-1]:.2f}",
                    f"{against_default[-1]:.2f}",
                )
            )
    report.text("## The tuned tile, the best of all candidates and the default")
    report.table(
        (
            "backend",
            "precision",
            "layer",
            "default",
            "tuned",
            "best",
            "tuned / best",
            "tuned / default",
        ),
        rows,
    )
    report.text(
        f"At worst the tuned tile takes {max(against_best):.2f} of the time of the best candidate "
        f"and {max(against_default):.2f} of that of the default."
    )


def _compare(
    name: str, precision: str, N: int, m: int, n: int, quick: bool
) -> tuple[str, str, dict[str, Times]]:
    """The tuner's choice, the best of all candidates, and the times of these and the default."""
    most = min(limit for limit in RANGES if n <= limit)
    case = tuner.Case("euclidean", precision, most, RANGES[most])
    chosen = tuner.measure(name, case, 0 if quick else tuner.SECONDS / len(tuner.cases(name))).tile
    X, C, W = tuner.problem(precision, N, m, n)
    layers = tuner.layers(name, case, C)
    tuner.verify(layers, X, W, precision)
    calls: dict[str, Callable[[], Any]] = {
        str(tile): partial(layer.scores, X, W) for tile, layer in layers.items()
    }
    times = in_turn(calls, 2 if quick else 15, rest=False)
    tuned, best = str(chosen), min(times, key=times.__getitem__)
    finalists = {tile: calls[tile] for tile in (_DEFAULT, tuned, best)}
    return tuned, best, in_turn(finalists, 2 if quick else 100, rest=False)


def _milliseconds(times: Times) -> str:
    median, low, high = (1e3 * seconds for seconds in times)
    return f"{median:.1f} ({low:.1f}–{high:.1f})"
